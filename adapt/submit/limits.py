"""Which nodes a cluster has, and which its autoscaler may add."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from adapt.errors import ConfigError

NODE_GROUPS = "DONTSTOP_NODE_GROUPS"
"""The variable of the head's environment that says which nodes may be added, where no autoscaler does (KubeRay's): YAML
such as `[{CPU: 8, GPU: 1, most: 8}]`."""


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are alike."""

    resources: Mapping[str, float]
    now: int
    most: int
    """So many there can be, with those that are there."""

    def described(self) -> str:
        """As in `up to 8 nodes with 8 CPU, 1 GPU`."""
        shown = {name: self.resources[name] for name in ("CPU", "GPU") if self.resources.get(name)}
        count = f"up to {self.most}" if self.most > self.now else str(self.now)
        return f"{count} node{'s' if self.most > 1 else ''} with {limit_words(shown)}"


def limit_words(resources: Mapping[str, float]) -> str:
    """Resources for people."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "no CPU"


def places(each: Mapping[str, float], kinds: Sequence[NodeKind]) -> int:
    """How many workers there can be room for, no worker being divided over nodes."""
    return sum(
        kind.most * int(min(kind.resources.get(name, 0) / amount for name, amount in each.items())) for kind in kinds
    )


def kinds_of_nodes() -> tuple[list[NodeKind], bool]:
    """The nodes that are there, those that can come, and whether an autoscaler is at work. Needs a connection to Ray.

    Limits are what the autoscaler has told the cluster, what NODE_GROUPS says, or what stands in the file that the
    autoscaler was started with on this node. Where none is to be had, the nodes that are there are all that can be
    counted on.

    Raises:
        ConfigError: NODE_GROUPS cannot be read.
    """
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    limits = told_limits() or limits_from(os.environ.get(NODE_GROUPS, "")) or limits_in(autoscaler_file())
    if not limits:
        return [NodeKind(resources, 1, 1) for resources in alive], False
    found = [NodeKind(resources, 1, 1) for resources in alive]
    for resources, most in limits:  # nodes of this kind that are there are counted once
        present = sum(_fits(resources, node) for node in alive)
        if most > present:
            found.append(NodeKind(resources, 0, most - present))
    return found, True


def _fits(resources: Mapping[str, float], node: Mapping[str, float]) -> bool:
    named = ("CPU", "GPU")
    return all(resources.get(name, 0) == node.get(name, 0) for name in named)


def told_limits() -> list[tuple[Mapping[str, float], int]]:
    """What the autoscaler has told the cluster of its kinds of nodes: resources of one, and the most of them."""
    from ray._private.state import state

    told = state.get_cluster_config()
    groups = told.node_group_configs if told else []
    return [(dict(group.resources), sys.maxsize if group.max_count < 0 else group.max_count) for group in groups]


def limits_from(groups: str) -> list[tuple[Mapping[str, float], int]]:
    """The kinds of nodes that NODE_GROUPS names: resources of one, and the most of them.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        found = [dict(group) for group in yaml.safe_load(groups) or []]
        limits = [(group, int(group.pop("most"))) for group in found]
        return [({name: float(amount) for name, amount in group.items()}, most) for group, most in limits]
    except (yaml.YAMLError, TypeError, ValueError, KeyError) as error:
        what = f"{NODE_GROUPS} of the head's environment is {groups}, which names no groups of nodes"
        fix = "write it as [{CPU: 8, GPU: 1, most: 8}]: resources of a node, and the most of them"
        raise ConfigError(what, fix) from error


def autoscaler_file() -> Path | None:
    """The cluster file that this cluster's autoscaler was started with, where it runs on this node."""
    import psutil
    import ray

    ours = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if ours in line and any(part.endswith("monitor.py") for part in line):
            options = dict(part.split("=", 1) for part in line if "=" in part)
            if file := options.get("--autoscaling-config"):
                return Path(file).expanduser()
    return None


def limits_in(file: Path | None) -> list[tuple[Mapping[str, float], int]]:
    """The kinds of nodes of a cluster file, but for the head's: resources of one, and the most of them."""
    try:
        content: dict[str, Any] = yaml.safe_load(file.read_text()) if file else {}
    except (OSError, yaml.YAMLError):
        return []
    whole = int(content.get("max_workers", 2))
    return [
        (kind.get("resources") or {}, min(int(kind.get("max_workers", whole)), whole))
        for name, kind in (content.get("available_node_types") or {}).items()
        if name != content.get("head_node_type")
    ]
