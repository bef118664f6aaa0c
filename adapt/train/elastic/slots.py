"""The places for workers that a cluster has at this moment, as it says itself and as its nodes answer."""

import socket
from collections.abc import Mapping
from typing import Any

import ray

from adapt.ray.private import free_resources, leaving_nodes

_ANSWER_S = 2.0


def free_slots(bundle: Mapping[str, float]) -> dict[str, int]:
    """How many more workers there is room for, by the id of each node that answers and is not about to go.

    Ray takes a quarter of a minute to notice that a node is gone; what listens there says so at once.

    Args:
        bundle: what a worker reserves.
    """
    free, leaving = free_resources(), leaving_nodes()
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving}
    return {name: _slots(free.get(name, {}), bundle) for name, node in nodes.items() if _answers(node)}


def _slots(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    return int(min(free.get(name, 0.0) / amount + 1e-6 for name, amount in bundle.items()))  # of sums of floats


def _answers(node: Mapping[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _ANSWER_S).close()
    except OSError:
        return False
    return True
