"""Looks, on a cluster, whether some work can be done there: storage that all nodes share, and places for workers."""

import os
import platform
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from adapt.config import Config, ResourcesConfig, fewest_of
from adapt.runner.lock import locked
from adapt.support.errors import ClusterError, ConfigError, StorageError
from adapt.terminal.console import log

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

    from adapt.ray.private import autoscaler_limits

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    limits = autoscaler_limits() or limits_from(os.environ.get(NODE_GROUPS, "")) or limits_in(autoscaler_file())
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


_PATIENCE_S = 120.0


def check_storage(root: Path) -> int:
    """Lets every node read what was written here, and write and lock beside it. Needs a connection to Ray.

    Only the last folder of the root is made: where its parent is missing, the file system that holds it is.

    Returns:
        The number of nodes that were asked.

    Raises:
        StorageError: names the node and what it cannot do.
    """
    if not root.parent.is_dir():
        raise StorageError(
            f"storage.root {root}: there is no {root.parent} on the cluster",
            "mount the file system that holds it on every node, or name one that is there: --storage.root /shared/…",
        )
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    word, sign = secrets.token_hex(8), root / f".seen-{secrets.token_hex(4)}"
    try:
        root.mkdir(exist_ok=True)
        sign.write_text(word)
    except OSError as error:
        raise _unusable(root, "the node that drives", error.strerror or str(error)) from error
    try:
        asked = ray.remote(num_cpus=0, max_retries=0)(try_storage)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        tries = {
            asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                str(sign), word
            ): node["NodeManagerHostname"]
            for node in nodes
        }
        for answer, host in tries.items():
            try:
                fault = ray.get(answer, timeout=_PATIENCE_S)
            except ray.exceptions.RayError as error:
                raise ClusterError(
                    f"node {host} does not answer: {error}", "see `ray status`, then try again"
                ) from error
            if fault:
                raise _unusable(root, f"node {host}", fault)
    finally:
        for left in root.glob(f"{sign.name}*"):
            left.unlink(missing_ok=True)
        (root / f".{sign.name}.lock").unlink(missing_ok=True)
    return len(nodes)


def try_storage(sign: str, word: str) -> str:
    """On a node: what keeps it from using the storage root; empty if nothing does.

    Args:
        sign: a file that another node has written there.
        word: what it holds.
    """
    file = Path(sign)
    try:
        if file.read_text() != word:
            return "it sees other files there than the node that drives"
        with locked(file):
            file.with_name(f"{file.name}-{secrets.token_hex(4)}").write_text(word)
    except FileNotFoundError:
        return "it does not see what another node has written there"
    except (OSError, StorageError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _unusable(root: Path, who: str, why: str) -> StorageError:
    return StorageError(
        f"storage.root {root} does not serve {who}: {why}",
        "name a folder on a file system that all nodes mount, that this user may write to, and that has locks",
    )


def check_places(configs: Iterable[Config]) -> None:
    """Holds what trainings ask for to what the cluster can ever have. Needs a connection to Ray.

    Raises:
        ClusterError: some can never run; says what would.
    """
    kinds, grows = kinds_of_nodes()
    for resources in {config.resources: None for config in configs}:
        check_ever(resources, kinds, grows)


def check_driver(resource: str) -> None:
    """Looks whether there are nodes, or can be, on which work may drive itself. Needs a connection to Ray.

    Raises:
        ClusterError: none has this resource.
    """
    kinds, _ = kinds_of_nodes()
    if not any(kind.resources.get(resource) for kind in kinds):
        raise ClusterError(
            f"no node of the cluster has the resource {resource}, on which the work is to drive itself",
            f"start one with `ray start --resources '{{\"{resource}\": 1}}'`, or leave --drive-on out",
        )


def check_ever(resources: ResourcesConfig, kinds: list[NodeKind], grows: bool) -> None:
    """Holds the workers of a training to the nodes that there are, or can be.

    Raises:
        ClusterError: there is no room for them, nor will there be.
    """
    has_gpus = any(kind.resources.get("GPU") for kind in kinds)
    gpus = resources.gpus_per_worker
    if gpus is None and has_gpus and grows and not any(k.now and k.resources.get("GPU") for k in kinds):
        raise ClusterError(
            "resources.gpus_per_worker is null, and the cluster has no GPU now: it would train on CPUs",
            "say --resources.gpus_per_worker 1, which brings GPU nodes up (or 0, for CPUs)",
        )
    each = {"CPU": resources.cpus_per_worker, "GPU": 1.0 if gpus is None and has_gpus else gpus or 0.0}
    each = {name: amount for name, amount in each.items() if amount}
    fewest = fewest_of(resources.workers)
    if (most := places(each, kinds)) < fewest:
        nodes = "; ".join(kind.described() for kind in kinds) or "no nodes"
        raise ClusterError(
            f"{fewest} workers with {limit_words(each)} each can never run: there is room for {most} at most ({nodes})",
            f"set resources.workers to at most {most}, or ask less per worker"
            if most
            else "ask less per worker" + ", or raise max_workers of the cluster",
        )


def check_environment(configs: Iterable[Config]) -> None:
    """Says which keys the work needs that the environment of this node lacks; never their values."""
    if any(config.tracking.wandb_project for config in configs) and not (
        os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") or (Path.home() / ".netrc").exists()
    ):
        log("tracking.wandb_project is set, but the nodes have no WANDB_API_KEY (docs/guide/clusters.md)")


def cluster_findings(nodes: int, ahead: dict[str, int]) -> dict[str, Any]:
    """What a check says at its end."""
    return {"nodes": nodes, "python": ".".join(platform.python_version_tuple()[:2]), "to_run": sum(ahead.values())}
