"""Looks, on a cluster, whether some work can be done there: storage that all nodes share, and places for workers."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adapt.config import Config, ResourcesConfig, fewest_of
from adapt.console import log
from adapt.errors import ClusterError, StorageError
from adapt.runner.lock import locked
from adapt.submit.limits import NodeKind, kinds_of_nodes, limit_words, places

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
        log("tracking.wandb_project is set, but the nodes have no WANDB_API_KEY (docs/cluster.md)")


def cluster_findings(nodes: int, ahead: dict[str, int]) -> dict[str, Any]:
    """What a check says at its end."""
    import platform

    return {"nodes": nodes, "python": ".".join(platform.python_version_tuple()[:2]), "to_run": sum(ahead.values())}
