"""Checks that a chain or job can run on a cluster, and determines the files and the environment that are sent there.

All nodes of the cluster must share the storage, and the nodes must have room for all workers. The files that are sent
must be smaller than Ray's limit, and the command line and the environment must contain no secrets.
"""

import os
import platform
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
import yaml
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from adapt.config import Config, ResourcesConfig, fewest_of
from adapt.ray.private import autoscaler_limits, files_sent
from adapt.runner.files import make_folder, storage_errors
from adapt.runner.lock import locked
from adapt.runner.mirror import mirror_at
from adapt.runner.secret import VARIABLE, key_file
from adapt.support.errors import ClusterError, ConfigError, StorageError
from adapt.support.redact import names_secret, redact
from adapt.terminal.console import log

NODE_GROUPS = "DONTSTOP_NODE_GROUPS"
"""Environment variable of the head node. It lists the nodes that the cluster may add.

The variable is needed if no autoscaler reports these nodes to Ray, as with KubeRay.

Its value is YAML such as `[{CPU: 8, GPU: 1, most: 8}]`.
"""


@dataclass(frozen=True)
class NodeKind:
    """A group of nodes with the same resources."""

    resources: Mapping[str, float]
    """Resources of one node of the group."""
    now: int
    """Present number of nodes in the group."""
    most: int
    """Maximum number of nodes in the group, including the present nodes."""

    def described(self) -> str:
        """Describes the group for people, such as `up to 8 nodes with 8 CPU, 1 GPU`."""
        shown = {name: self.resources[name] for name in ("CPU", "GPU") if self.resources.get(name)}
        count = f"up to {self.most}" if self.most > self.now else str(self.now)
        return f"{count} node{'s' if self.most > 1 else ''} with {limit_words(shown)}"


def limit_words(resources: Mapping[str, float]) -> str:
    """Formats resources for people, such as `8 CPU, 1 GPU`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "no CPU"


def worker_room(per_worker: Mapping[str, float], kinds: Sequence[NodeKind]) -> int:
    """Returns the maximum number of workers that fit on the nodes. A worker cannot be split across nodes."""
    return sum(
        kind.most * int(min(kind.resources.get(name, 0) / amount for name, amount in per_worker.items()))
        for kind in kinds
    )


def kinds_of_nodes() -> tuple[list[NodeKind], bool]:
    """Returns the groups of nodes that the cluster has or may add, and whether the cluster may grow.

    The maximum numbers of nodes come from the autoscaler's report to the cluster, from NODE_GROUPS, or from the cluster
    file of an autoscaler that runs on this node, in this order. Without any of these, only the present nodes count. The
    function needs a connection to Ray.
    """
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    limits = autoscaler_limits() or limits_from(os.environ.get(NODE_GROUPS, "")) or limits_in(autoscaler_file())
    if not limits:
        return [NodeKind(resources, 1, 1) for resources in alive], False
    groups, left = [group for group, _ in limits], [most for _, most in limits]
    for node in alive:  # counts each node in one group, even if several groups have the same CPUs and GPUs
        open_groups = [number for number, group in enumerate(groups) if left[number] > 0 and _fits(group, node)]
        if open_groups:
            left[max(open_groups, key=lambda number: _likeness(groups[number], node))] -= 1
    starting = [NodeKind(group, 0, most) for group, most in zip(groups, left, strict=True) if most > 0]
    return [*(NodeKind(resources, 1, 1) for resources in alive), *starting], True


def _fits(group: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(group.get(name, 0) == node.get(name, 0) for name in ("CPU", "GPU"))


def _likeness(group: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Returns how well a node fits a group: the number of the group's resources that it has, minus those it lacks."""
    return len(group.keys() & node.keys()) - len(group.keys() - node.keys())


def limits_from(groups: str) -> list[tuple[Mapping[str, float], int]]:
    """Parses NODE_GROUPS: for each kind of node, the resources of a node and the maximum number of nodes."""
    try:
        copies = [dict(group) for group in yaml.safe_load(groups) or []]
        limits = [(group, int(group.pop("most"))) for group in copies]
        return [({name: float(amount) for name, amount in group.items()}, most) for group, most in limits]
    except (yaml.YAMLError, TypeError, ValueError, KeyError) as error:
        what = f"{NODE_GROUPS} in the head's environment is {groups}, which is not a list of groups of nodes"
        fix = "write it as [{CPU: 8, GPU: 1, most: 8}]: resources of a node, and the largest number of nodes"
        raise ConfigError(what, fix) from error


def autoscaler_file() -> Path | None:
    """Finds the cluster file of this cluster's autoscaler. Returns None if the autoscaler does not run on this node."""
    ours = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if ours in line and any(part.endswith("monitor.py") for part in line):
            options = dict(part.split("=", 1) for part in line if "=" in part)
            if file := options.get("--autoscaling-config"):
                return Path(file).expanduser()
    return None


def limits_in(file: Path | None) -> list[tuple[Mapping[str, float], int]]:
    """Reads the kinds of worker nodes in a cluster file: the resources of a node, and the maximum number of nodes.

    Returns an empty list if `file` is None, cannot be read or is empty.
    """
    try:
        content: Any = yaml.safe_load(file.read_text()) if file else None
    except (OSError, yaml.YAMLError):
        return []
    if not isinstance(content, dict):  # the file is empty, or is no cluster file
        return []
    whole = int(content.get("max_workers", 2))
    return [
        (kind.get("resources") or {}, min(int(kind.get("max_workers", whole)), whole))
        for name, kind in (content.get("available_node_types") or {}).items()
        if name != content.get("head_node_type")
    ]


_PATIENCE_S = 120.0


def check_storage(root: Path) -> int:
    """Checks that every node can read this node's files in the storage root, and write and lock files there.

    The root's folder is created only if its parent exists, because a missing parent means that a file system is not
    mounted. The function needs a connection to Ray.

    Returns:
        Number of nodes that were checked.
    """
    if not root.parent.is_dir():
        raise StorageError(
            f"storage.root {root}: the folder {root.parent} does not exist on the cluster",
            "mount its file system on every node, or use a folder that exists: --storage.root /shared/…",
        )
    word, sign = secrets.token_hex(8), root / f".seen-{secrets.token_hex(4)}"
    try:
        root.mkdir(exist_ok=True)
        sign.write_text(word)
    except OSError as error:
        raise _unusable(root, "the job's node", error.strerror or str(error)) from error
    try:
        faults = _on_all_nodes(try_storage, str(sign), word)
    finally:
        for left in root.glob(f"{sign.name}*"):
            left.unlink(missing_ok=True)
        (root / f".{sign.name}.lock").unlink(missing_ok=True)
    for host, fault in faults:
        if fault:
            raise _unusable(root, f"node {host}", fault)
    return len(faults)


def _on_all_nodes(function: Callable[..., str], *arguments: Any) -> list[tuple[str, str]]:
    """Calls a function on each node. Returns each node's name and result."""
    task = ray.remote(num_cpus=0, max_retries=0)(function)
    results = []
    tries = [
        (
            node["NodeManagerHostname"],
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                *arguments
            ),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    for host, answer in tries:
        try:
            results.append((host, ray.get(answer, timeout=_PATIENCE_S)))
        except ray.exceptions.RayError as error:
            raise ClusterError(f"node {host} does not answer: {error}", "see `ray status`, then try again") from error
    return results


def check_bucket(root: Path) -> int:
    """Checks that every node can use the bucket, and can write its own local copy. Needs a connection to Ray.

    Returns:
        Number of nodes that were checked.
    """
    faults = _on_all_nodes(try_bucket, str(root))
    for host, fault in faults:
        if fault:
            raise StorageError(
                f"node {host} cannot use the bucket or storage.cache: {fault}",
                "give every node the credentials of the store (a role, or AWS's variables and files), and a disk that"
                " this user may write to at storage.cache",
            )
    return len(faults)


def try_bucket(root: str) -> str:
    """Checks on a node whether it can use the bucket and write the local copy. Returns the error, or "" if it can."""
    mirror = mirror_at(Path(root))
    assert mirror
    try:
        with storage_errors(mirror.root):
            make_folder(mirror.root)
            tempfile.TemporaryFile(dir=mirror.root).close()
        mirror.check_store()
    except (OSError, StorageError, ConfigError) as error:
        return getattr(error, "what", None) or str(error)
    return ""


def try_storage(sign: str, word: str) -> str:
    """Checks on a node whether it can use the storage root. Returns the error, or an empty text if it can.

    Args:
        sign: path of a test file that another node has written to the storage root.
        word: content of the file.
    """
    file = Path(sign)
    try:
        if file.read_text() != word:
            return "its files there differ from the files on the job's node"
        with locked(file):
            file.with_name(f"{file.name}-{secrets.token_hex(4)}").write_text(word)
    except FileNotFoundError:
        return "it does not see a file that another node has written there"
    except (OSError, StorageError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _unusable(root: Path, who: str, why: str) -> StorageError:
    return StorageError(
        f"{who} cannot use storage.root {root}: {why}",
        "use a folder on a file system that all nodes mount, that this user may write to, and that supports locks",
    )


def check_places(configs: Iterable[Config]) -> None:
    """Checks that the cluster, at its largest size, has room for the workers of each training run.

    The function needs a connection to Ray.
    """
    kinds, grows = kinds_of_nodes()
    for resources in {config.resources: None for config in configs}:
        check_ever(resources, kinds, grows)


def check_driver(resource: str) -> None:
    """Checks that a node that the cluster has or may add has the resource that `--drive-on` names.

    The function needs a connection to Ray.
    """
    kinds, _ = kinds_of_nodes()
    if not any(kind.resources.get(resource) for kind in kinds):
        raise ClusterError(
            f"no node of the cluster has the resource {resource}, which --drive-on names",
            f"start a node with `ray start --resources '{{\"{resource}\": 1}}'`, or leave --drive-on out",
        )


def check_ever(resources: ResourcesConfig, kinds: list[NodeKind], grows: bool) -> None:
    """Checks that the workers of a training run fit on the nodes that the cluster has or may add.

    Raises:
        ClusterError: the workers will never fit on the nodes. Or `gpus_per_worker` is null, and the job would train on
            CPUs because no GPU node has started yet.
    """
    has_gpus = any(kind.resources.get("GPU") for kind in kinds)
    gpus = resources.gpus_per_worker
    if gpus is None and has_gpus and grows and not any(k.now and k.resources.get("GPU") for k in kinds):
        raise ClusterError(
            "resources.gpus_per_worker is null, and the cluster has no GPU now, so the job would train on CPUs",
            "set --resources.gpus_per_worker to 1 to start GPU nodes, or to 0 to train on CPUs",
        )
    per_worker = {"CPU": resources.cpus_per_worker, "GPU": 1.0 if gpus is None and has_gpus else gpus or 0.0}
    per_worker = {name: amount for name, amount in per_worker.items() if amount}
    fewest = fewest_of(resources.workers)
    if (most := worker_room(per_worker, kinds)) < fewest:
        nodes = "; ".join(kind.described() for kind in kinds) or "no nodes"
        raise ClusterError(
            f"{fewest} workers with {limit_words(per_worker)} each can never run: "
            f"there is room for {most} at most ({nodes})",
            f"set resources.workers to at most {most}, or request fewer CPUs or GPUs per worker"
            if most
            else "request fewer CPUs or GPUs per worker" + ", or raise max_workers of the cluster",
        )


def check_environment(configs: Iterable[Config], root: Path) -> None:
    """Logs a message if this node lacks credentials that the chain or job needs.

    Args:
        configs: configurations of the chain or job.
        root: storage root, or its local copy if it is a bucket.
    """
    if any(config.tracking.wandb_project for config in configs) and not (
        os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") or (Path.home() / ".netrc").exists()
    ):
        log("tracking.wandb_project is set, but the nodes have no WANDB_API_KEY (docs/guide/clusters.md)")
    if mirror_at(root) and not os.environ.get(VARIABLE) and not key_file(root).exists():
        log(
            f"the results are in a bucket, but the nodes have no {VARIABLE} (docs/guide/clusters.md): if this node is"
            " replaced, the checkpoints are refused"
        )


def cluster_findings(nodes: int, ahead: dict[str, int]) -> dict[str, Any]:
    """Returns the values that a check prints: number of nodes, version of Python, and number of stages to run."""
    return {"nodes": nodes, "python": ".".join(platform.python_version_tuple()[:2]), "to_run": sum(ahead.values())}


MOST_BYTES = 100_000_000
"""Maximum size of the working directory [bytes]. Ray refuses packages above 100 MiB, but only after packing them."""
STOP_WAIT_S = 60
"""Time that a stopped job has for a clean exit before it is killed [s]. Ray's default is 3 s."""


def working_directory() -> Path:
    """Returns the current folder, which is sent to the cluster."""
    here = Path.cwd().resolve()
    if not (here / "jobs" / "chain.py").is_file() or not (here / "cluster" / "runtime_env.yaml").is_file():
        raise ConfigError(
            f"{here} is not the project's folder, which must be sent to the cluster",
            "change to the project's folder, and try again",
        )
    return here


def runtime_environment(root: Path) -> dict[str, Any]:
    """Returns the runtime environment of a job: `cluster/runtime_env.yaml` and the path of the working directory.

    Raises:
        ConfigError: the file sets a variable that holds a secret, which Ray would show in its lists of jobs.
    """
    content: dict[str, Any] = yaml.safe_load((root / "cluster" / "runtime_env.yaml").read_text())
    for name, value in content.get("env_vars", {}).items():
        if names_secret(name) or redact(str(value)) != str(value):
            raise ConfigError(
                f"cluster/runtime_env.yaml sets {name}, which has a secret that the cluster's job lists would show",
                "remove it, and set credentials in the environment of the nodes (docs/guide/clusters.md)",
            )
    stop = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
    return {**content, "working_dir": str(root), "env_vars": {**content.get("env_vars", {}), **stop}}


def check_size(environment: dict[str, Any], most: int = MOST_BYTES) -> int:
    """Checks the size of the files that would be sent.

    Files that `.rayignore`, `.gitignore` or the field `excludes` leave out do not count.

    Returns:
        Size of the files before compression [bytes].
    """
    root = Path(environment["working_dir"])
    sizes: Counter[str] = Counter()
    for path in files_sent(root, environment.get("excludes", ())):
        parts = path.relative_to(root).parts
        sizes["/".join(parts[:2]) if len(parts) > 1 else parts[0]] += path.stat().st_size
    total = sum(sizes.values())
    if total > most:
        largest = ", ".join(f"{name} ({size / 1e6:,.0f} MB)" for name, size in sizes.most_common(3))
        raise ConfigError(
            f"the working directory {root} has {total / 1e6:,.0f} MB, but at most {most / 1e6:,.0f} MB can be sent to a"
            f" cluster; the largest parts: {largest}",
            f"list files that jobs do not need in {root / '.rayignore'}, one per line; text and results belong on the"
            " cluster's own storage",
        )
    return total


def inside(arguments: Sequence[str], root: Path) -> list[str]:
    """Rewrites the paths of YAML files in arguments, so that they are relative to the working directory.

    Raises:
        ConfigError: a YAML file is outside of the working directory.
    """
    return [_inside(argument, root) for argument in arguments]


def _inside(argument: str, root: Path) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value).expanduser()
    if not value.endswith((".yaml", ".yml")) or not path.is_file():
        return argument
    if not path.resolve().is_relative_to(root):
        what = f"{value} is outside the working directory {root}, which is sent to the cluster"
        raise ConfigError(what, "move it there, for example next to jobs/recipes")
    return f"{option}{equals}{path.resolve().relative_to(root)}"


def check_no_secrets(arguments: Sequence[str]) -> None:
    """Refuses passwords and signatures in arguments, because the cluster's lists of jobs show command lines."""
    for argument in arguments:
        if redact(argument) != argument:
            raise ConfigError(
                f"{redact(argument)} has a password or a signature, which the cluster's job lists would show",
                "leave it out, and set credentials in the environment of the nodes (docs/guide/clusters.md)",
            )
