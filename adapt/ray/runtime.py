"""The Ray cluster this process works with: joined or started once, quiet, and checked for what is asked of it."""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from adapt.config import ResourcesConfig, fewest_of, most_of
from adapt.ray.address import endpoint, join
from adapt.ray.own import OWN_RAY, start_ray
from adapt.support.errors import AdaptError, ClusterError, DeviceMemoryError
from adapt.terminal.console import log

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; unset, Ray warns
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else a thread that is left over after ctrl-C would start another Ray
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # when a raylet dies, Ray prints its log to stdout, which is for results
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the default of 2 s delays start, checkpoints and end
}
LACK_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "Cannot allocate memory")
"""What PyTorch's allocators, and the operating system, say."""
TAKES_LESS = "free memory on the machines, or take larger ones"
PROCESS_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
"""The environment of a process that trains on a CPU.

Ray Train's workers train in a thread other than their first. By default glibc gives such a thread memory of its own in
pieces of at most 64 MiB. Larger blocks, such as the gradient of an embedding, become mappings, returned when they are
freed, whatever `adapt.train.model_options.keep_freed_memory` asks for. And OpenMP's threads wait for each other by
turning in circles, on a core that whoever they wait for, a reader, or Ray may need. They do so some tenths of a
millisecond and then sleep: to sleep at once, and be woken thousands of times a step, took a quarter of it on an Intel
machine. All are read once, when a process starts.
"""
LOCAL_ENVIRONMENT = {
    **PROCESS_ENVIRONMENT,
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process more at each start, and nobody takes this machine away
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for binding everything to loopback
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_niceness": "0",  # added to the parent's; Ray's 15 starves training beside anything else that runs
}
NODE_ADDRESS = "DONTSTOP_NODE_ADDRESS"
"""The variable that tells a job on which node it is, where several share a machine; Ray takes it to be on the head."""
QUIET_LOGGERS = ("ray", "ray.train", "ray.tune")


def address_of(resources: ResourcesConfig) -> str | None:
    """Address of the cluster to join; None to start Ray on this machine."""
    address = (resources.address or os.environ.get("RAY_ADDRESS") or "").strip()
    return None if address in ("", "local") else address


def check_address(resources: ResourcesConfig) -> None:
    """Checks the form of the address of the cluster to join.

    Raises:
        ClusterError: it is none that Ray can join.
    """
    if address := address_of(resources):
        endpoint(address, _named_by(resources))


def _named_by(resources: ResourcesConfig) -> str:
    return "resources.address" if resources.address else "RAY_ADDRESS"


def connect(resources: ResourcesConfig) -> None:
    """Joins the cluster at the configured address, or starts Ray on this machine. Later calls do nothing.

    A connection that a user's own program has made is used as it is.

    Raises:
        ClusterError: nobody answers at the address, or Ray does not start, or this process works with another cluster.
    """
    address = address_of(resources)
    _set_environment(address)
    import ray

    if ray.is_initialized():
        _check_same(address)
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if address:
        join(address, _named_by(resources), os.environ.get(NODE_ADDRESS))
    else:
        log("starting Ray on this machine")
        start_ray()
    _made.clear()
    _made.update({name: os.environ[name] for name in (*LOCAL_ENVIRONMENT, OWN_RAY, "HOME") if name in os.environ})
    _made[_ADDRESS] = address or ""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has installed its own
    hush()


_ADDRESS = "address"
_made: dict[str, str] = {}
"""The address of the connection that this process has made, and the environment variables that belong to it."""


def _set_environment(address: str | None) -> None:
    """Sets what Ray, and the processes that it starts, read when they start."""
    for name, value in {**ENVIRONMENT, **({} if address else LOCAL_ENVIRONMENT)}.items():
        os.environ.setdefault(name, value)
    if address:
        os.environ.pop(OWN_RAY, None)  # of a Ray of our own that this process was started from
    elif _made:
        os.environ.update({name: value for name, value in _made.items() if name != _ADDRESS})


def _check_same(address: str | None) -> None:
    """Refuses another cluster than the one that this process has joined."""
    if _made and _made[_ADDRESS] != (address or ""):
        known = _made[_ADDRESS] or "a Ray of its own"
        raise ClusterError(
            f"this process works with {known}, and {address or 'its own Ray'} is asked for (resources.address)",
            "call ray.shutdown() first, or use another process",
        )


def is_own_ray() -> bool:
    """Whether this process works with a Ray of our own, and not with a cluster or a user's own connection."""
    return OWN_RAY in os.environ


def disconnect() -> None:
    """Ends the connection that `connect` has made, with all that runs in it. A user's own connection stays."""
    if not _made:
        return
    import ray

    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    deadline = time.monotonic() + DISCONNECT_S
    while ending.is_alive() and time.monotonic() < deadline:
        with suppress(KeyboardInterrupt):  # a second one: the end is under way
            ending.join(0.2)
    _made.clear()


DISCONNECT_S = 30.0
"""Seconds that Ray has to end."""


def hush() -> None:
    """Keeps Ray's loggers quiet. Its libraries configure theirs when they are imported: called again after that."""
    warnings.filterwarnings("ignore", module="ray.data")  # advice on tuning small inputs
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs errors and raises them; one message is enough


def gpus_per_worker(resources: ResourcesConfig) -> float:
    """GPUs for each worker, resolved against the cluster where the configuration leaves it open."""
    import ray

    if resources.gpus_per_worker is not None:
        return resources.gpus_per_worker
    return 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0


def hide_unreserved_gpus() -> None:
    """In a Ray process, before torch is imported: shows it the GPUs it reserved, where Ray leaves all to be seen."""
    import ray

    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def await_resources(resources: ResourcesConfig) -> None:
    """Makes sure that the fewest workers can be placed. A joined cluster is asked to grow, and given time to.

    Raises:
        ClusterError: the machine cannot give what was asked, or the cluster did not within resources.wait_s.
    """
    bundle, fewest = bundle_of(resources), fewest_of(resources.workers)
    if _placeable(bundle) < fewest and address_of(resources):
        _grow(bundle, resources)
    if (placeable := _placeable(bundle)) < fewest:
        raise ClusterError(
            f"there is room for {placeable} of {fewest} workers with {_words(bundle)} each; "
            f"the cluster has {_words(_totals(bundle))} in all",
            f"set resources.workers to at most {max(placeable, 1)}, ask less per worker, or add nodes",
        )


def bundle_of(resources: ResourcesConfig) -> dict[str, float]:
    """What each worker reserves on the cluster that this process is connected to."""
    gpus = gpus_per_worker(resources)
    return {"CPU": resources.cpus_per_worker, **({"GPU": gpus} if gpus else {})}


def _grow(bundle: dict[str, float], resources: ResourcesConfig) -> None:
    """Waits for nodes, by asking for places that the cluster may not have yet.

    The autoscaler adds up the places that all jobs wait for. Ray's request_resources, in contrast, is one wish for the
    whole cluster: the last job overwrites those of the others.
    """
    from ray.util import placement_group, remove_placement_group

    fewest = fewest_of(resources.workers)
    log(f"waiting up to {resources.wait_s:g} s for {fewest} workers with {_words(bundle)} each")
    wanted = placement_group([bundle] * most_of(resources.workers), strategy="PACK")
    deadline = time.monotonic() + resources.wait_s
    try:
        while _placeable(bundle) < fewest and time.monotonic() < deadline:
            time.sleep(1)
    finally:
        remove_placement_group(wanted)  # the workers take these places themselves


def totals() -> dict[str, float]:
    """The cores and GPUs of the cluster as it is now."""
    return _totals({"CPU": 0, "GPU": 0})


def _totals(bundle: dict[str, float]) -> dict[str, float]:
    import ray

    return {name: ray.cluster_resources().get(name, 0) for name in bundle}


def _placeable(bundle: dict[str, float]) -> int:
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(min(node.get(name, 0) / amount for name, amount in bundle.items())) for node in alive)


def _words(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


@contextmanager
def data_settings(object_store_bytes: int | None = None, **settings: Any) -> Iterator[None]:
    """Ray Data's settings for the datasets made inside: quiet, rows in order, and what is given.

    Args:
        object_store_bytes: what may wait between tasks; None for Ray's own limit, a share of the machine's memory.
        **settings: of `ray.data.DataContext`.
    """
    from ray.data import DataContext, ExecutionResources

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    context.issue_detectors_config.detectors = []
    context.raise_original_map_exception = True  # what Ray puts in its place loses its cause between processes
    context.execution_options.preserve_order = True
    if object_store_bytes is not None:
        limits = ExecutionResources.for_limits(object_store_memory=object_store_bytes)
        context.execution_options.resource_limits = limits
    for name, value in settings.items():
        setattr(context, name, value)
    with DataContext.current(context):
        hush()
        yield


@contextmanager
def user_errors(
    takes_less: str = TAKES_LESS, sequences: int = 1, field: str = "training.micro_batch"
) -> Iterator[None]:
    """Lets an error of ours, raised in a Ray process, out as itself, and a lack of memory there as one of ours.

    Args:
        takes_less: what to change where memory runs out.
        sequences: that pass a device at once, where fewer would take less; else 1.
        field: that says how many do.
    """
    try:
        yield
    except Exception as error:
        if ours := find_ours(error):
            raise ours from error
        if was_killed_for_memory(error):
            what = "a machine ran out of memory, and Ray killed the process that worked there"
            raise DeviceMemoryError(what, takes_less, sequences, field=field) from error
        if any(lacks_memory(cause) for cause in causes(error)):
            raise DeviceMemoryError("a device ran out of memory", takes_less, sequences, field=field) from error
        raise


def was_killed_for_memory(error: BaseException) -> bool:
    """Whether Ray's memory monitor is among the causes of an error."""
    from ray.exceptions import OutOfMemoryError

    return any(isinstance(cause, OutOfMemoryError) for cause in causes(error))


def lacks_memory(error: BaseException) -> bool:
    """Whether an error itself says that memory ran out; Ray's own hold whole tracebacks, and are not looked at."""
    from ray.exceptions import RayError

    if isinstance(error, RayError):
        return False
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in LACK_OF_MEMORY)


def find_ours(error: BaseException) -> AdaptError | None:
    """The first error of this package's own among the causes of one."""
    for cause in causes(error):
        if isinstance(cause, AdaptError):
            ours = getattr(cause, "cause", cause)  # Ray raises a double of it, which prints the worker's stack trace
            return type(ours)(ours.what, ours.fix, *ours.args[2:])  # Ray Data adds to the first of them
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that led to it, nearest first, also where only Ray's own attributes say so."""
    waiting: list[Any] = [error]
    seen: set[int] = set()
    for each in waiting:
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        ranks: dict[int, BaseException] = getattr(each, "worker_failures", {})
        kept = (getattr(each, name, None) for name in ("controller_failure", "health_check_failure", "cause"))
        waiting += [*ranks.values(), *kept, each.__cause__, each.__context__]
