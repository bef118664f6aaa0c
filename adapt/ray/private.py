"""Contains all uses of Ray's private interfaces. No other module imports private names of Ray.

Ray has no public interface for these tasks:

- replace the policy that sets the number of workers of an elastic training run (`with_policy`, `ScalingPolicy`);
- read the free resources of each node, and the nodes that are about to leave (`free_resources`, `leaving_nodes`);
- read the nodes that the autoscaler may add (`autoscaler_limits`);
- list the files of a working directory that Ray would send (`files_sent`), and silence its log messages about them;
- read the version of Ray that a cluster runs (`version_at`);
- wait longer for a raylet on a busy machine (`waiting_for_raylet`);
- bind all sockets to loopback after Ray was imported (`listen_on_loopback`).

This module works with Ray 2.60, and raises an error for other minor versions (see `adapt.support.versions`).
`tests/ray/test_private.py` tests each function against the installed Ray. Training with a fixed number of workers does
not import this module, unless Ray starts too slowly, or the user's program imported Ray before dontstop.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapt.support.errors import ClusterError
from adapt.support.versions import TRIED, named, untried

TESTED = TRIED["ray"]
"""Version of Ray that this module was tested with. Versions with the same major and minor number are accepted."""


def _refusal(why: str) -> ClusterError:
    """Creates the error for a version of Ray that this module was not tested with."""
    return ClusterError(
        f"a range in resources.workers and the submission of jobs need Ray {TESTED}, but this environment has"
        f" {named('ray')}: {why}",
        f'run: pip install "ray[data,default,train,tune]=={TESTED}"; or set resources.workers to one number',
    )


if untried("ray"):
    raise _refusal(untried("ray")[0])

try:
    from ray._private import ray_constants, services
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes
    from ray._private.state import state
    from ray.train.v2._internal.execution.context import TrainRunContext
    from ray.train.v2._internal.execution.controller.state import ReschedulingState, RestartingState
    from ray.train.v2._internal.execution.scaling_policy import (
        NoopDecision,
        ResizeDecision,
        ScalingDecision,
        ScalingPolicy,
    )
    from ray.train.v2.api.exceptions import PreemptionError
except ImportError as error:
    raise _refusal(str(error)) from error

__all__ = [
    "NoopDecision",
    "PreemptionError",
    "ReschedulingState",
    "ResizeDecision",
    "RestartingState",
    "ScalingDecision",
    "ScalingPolicy",
    "TrainRunContext",
    "autoscaler_limits",
    "files_sent",
    "free_resources",
    "leaving_nodes",
    "listen_on_loopback",
    "send_in_silence",
    "version_at",
    "waiting_for_raylet",
    "with_policy",
    "worker_resources",
]


def with_policy(trainer: Any, policy: ScalingPolicy) -> Any:
    """Changes a `TorchTrainer` in place so that `policy` decides on its number of workers. Returns the trainer."""
    run_controller = trainer._initialize_and_run_controller
    trainer._initialize_and_run_controller = lambda **settings: run_controller(**{**settings, "scaling_policy": policy})
    return trainer


def worker_resources(scaling_config: Any) -> dict[str, float]:
    """Returns the resources that a `ScalingConfig` reserves for each worker."""
    return dict(scaling_config._resources_per_worker_not_none)


def free_resources() -> dict[str, dict[str, float]]:
    """Returns the free resources of each live node, keyed by node id."""
    return dict(state.available_resources_per_node())


def leaving_nodes() -> set[str]:
    """Returns the ids of the nodes that are being drained, such as preempted cloud nodes."""
    return set(state.get_draining_nodes())


def autoscaler_limits() -> list[tuple[Mapping[str, float], int]]:
    """Returns the resources and the maximum number of nodes, for each type of node that the autoscaler may add."""
    cluster_config = state.get_cluster_config()
    groups = cluster_config.node_group_configs if cluster_config else []
    return [(dict(group.resources), sys.maxsize if group.max_count < 0 else group.max_count) for group in groups]


def files_sent(root: Path, excludes: Sequence[str]) -> Iterator[Path]:
    """Yields the files of a working directory that Ray sends to a cluster.

    Args:
        root: working directory.
        excludes: patterns of the field `excludes` of the runtime environment. Ray also reads `.rayignore` and
            `.gitignore`.
    """
    found: list[Path] = []
    follows_git = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
    silent: Any = _Silent()
    _dir_travel(root, [_get_excludes(root, list(excludes))], found.append, follows_git, silent)
    return (path for path in found if path.is_file() and not path.is_symlink())


def send_in_silence() -> None:
    """Stops Ray from logging each package that it sends to a cluster."""
    logging.getLogger(_dir_travel.__module__).setLevel(logging.WARNING)


def version_at(client: Any) -> str:
    """Reads the version of Ray on the cluster of a `JobSubmissionClient`.

    The client's own `get_version` returns the version of the job API instead.

    Raises:
        AuthenticationError, RuntimeError, ValueError, KeyError, OSError: Ray's dashboard does not answer.
    """
    return str(client._do_request("GET", "/api/version").json()["ray_version"])


@contextmanager
def waiting_for_raylet(seconds: float) -> Iterator[None]:
    """Makes `ray.init` wait up to this time for its raylet inside the block, instead of 30 s.

    Ray asks repeatedly for the node, until the raylet has registered it or the time is over.
    """
    ask: Any = services.get_node
    end = time.monotonic() + seconds

    def ask_patiently(*arguments: Any) -> Any:
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    services.get_node = ask_patiently
    try:
        yield
    finally:
        services.get_node = ask


def listen_on_loopback() -> None:
    """Makes `ray.init` bind all sockets to loopback, as RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 does.

    Ray reads that variable only when it is imported.
    """
    ray_constants.ENABLE_RAY_CLUSTER = False


class _Silent:
    """A logger that discards all messages. Ray's logger would print the name of each `.gitignore` file."""

    def info(self, *_: object) -> None: ...

    error = info
