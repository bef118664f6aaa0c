"""Places for workers: free, on nodes that answer and are not about to go."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util import placement_group, remove_placement_group

from adapt.train.elastic import slots
from adapt.train.elastic.slots import free_slots


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def node(name: str, port: int, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}


def test_what_counts(monkeypatch: pytest.MonkeyPatch, listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    free = {
        "large": {"CPU": 7.0, "GPU": 3.0},
        "thirds": {"CPU": 8.0, "GPU": 0.1 + 0.2},  # 0.30000000000000004, and as often 0.2999…
        "full": {"GPU": 4.0},
        "leaving": {"CPU": 8.0, "GPU": 8.0},
        "cut off": {"CPU": 8.0, "GPU": 8.0},
        "gone": {"CPU": 8.0, "GPU": 8.0},
    }
    nodes = [node(name, dead if name == "cut off" else listener, name != "gone") for name in free]
    monkeypatch.setattr(slots, "free_resources", lambda: free)
    monkeypatch.setattr(slots, "leaving_nodes", lambda: {"leaving"})
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert free_slots({"CPU": 2.0, "GPU": 1.0}) == {"large": 3, "thirds": 0, "full": 0}
    assert free_slots({"GPU": 0.1}) == {"large": 30, "thirds": 3, "full": 40}


@pytest.mark.usefixtures("ray_cluster")
def test_of_a_real_ray() -> None:
    """Ray's private functions are what they were."""
    name, cores = ray.get_runtime_context().get_node_id(), ray.cluster_resources()["CPU"]
    taken = placement_group([{"CPU": cores}])
    ray.get(taken.ready())
    try:
        assert _soon() == {name: 0}
    finally:
        remove_placement_group(taken)
    assert _soon(int(cores)) == {name: int(cores)}


def _soon(room: int = 0) -> dict[str, int]:
    """The places when there are so many, or after some time."""
    end = time.monotonic() + 20
    while sum(free_slots({"CPU": 1.0}).values()) != room and time.monotonic() < end:
        time.sleep(0.05)
    return free_slots({"CPU": 1.0})
