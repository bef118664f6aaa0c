"""Joins or starts Ray once per process, silences its logs, checks its resources, and unwraps dontstop's own errors."""

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

from adapt.config import ResourcesConfig, fewest_of, most_of
from adapt.ray.connection import OWN_RAY, endpoint, join, ray_library, start_ray
from adapt.ray.node_files import serve_files
from adapt.runner.notifications import announce
from adapt.support.errors import AdaptError, ClusterError, DeviceMemoryError, StallError
from adapt.support.stall_watch import STALLS, read_stalls
from adapt.support.versions import named, untried
from adapt.terminal.console import log

LACK_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "Cannot allocate memory")
"""Parts of the messages of PyTorch's allocators and of the operating system when memory runs out."""
TAKES_LESS = "free memory on the machines, or use machines with more memory"
PROCESS_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
"""Environment variables of a process that trains on a CPU. They are read once, when the process starts.

MALLOC_ARENA_MAX: all threads share the main memory arena. By default, glibc gives threads other than the main thread,
such as the training thread of Ray Train's workers, arenas of at most 64 MiB. Larger blocks, such as the gradient of an
embedding, are then mapped separately and returned to the kernel when they are freed, in spite of
`adapt.train.worker_process.keep_freed_memory`.

OMP_WAIT_POLICY and GOMP_SPINCOUNT: by default, OpenMP's threads spin while they wait for each other, and block cores
that other processes need. With these values, the threads spin for some tenths of a millisecond and then sleep.
Sleeping without spinning took up a quarter of a step's time on an Intel machine, because threads are woken thousands of
times per step.
"""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for binding all sockets to loopback. Ray reads it when it is imported."""
LOCAL_ENVIRONMENT = {
    **PROCESS_ENVIRONMENT,
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # off, because this machine is never preempted
    LOOPBACK: "0",
    "RAY_enable_metrics_collection": "0",
    # gives workers the parent's niceness; Ray would add 15, so that other programs would get the cores first
    "RAY_worker_niceness": "0",
}
NODE_ADDRESS = "DONTSTOP_NODE_ADDRESS"
"""Environment variable with the address of a job's node, if several nodes share a machine.

Without the variable, Ray would use the address of the head node.
"""
QUIET_LOGGERS = ("ray", "ray.train", "ray.tune")


def address_of(resources: ResourcesConfig) -> str | None:
    """Returns the address of the cluster to join. Returns None if Ray should be started on this machine."""
    address = (resources.address or os.environ.get("RAY_ADDRESS") or "").strip()
    return None if address in ("", "local") else address


def check_address(resources: ResourcesConfig) -> None:
    """Checks the form of the address of the cluster to join."""
    if address := address_of(resources):
        endpoint(address, _named_by(resources))


def _named_by(resources: ResourcesConfig) -> str:
    return "resources.address" if resources.address else "RAY_ADDRESS"


def connect(resources: ResourcesConfig) -> None:
    """Joins the cluster at the configured address, or starts Ray on this machine. Later calls do nothing.

    If the user's program has already connected to Ray, that connection is used.
    """
    address = address_of(resources)
    is_too_late = "ray" in sys.modules and LOOPBACK not in os.environ
    _set_environment(address)
    ray = ray_library()
    if ray.is_initialized():
        _check_same(address)
        serve_files()
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if address:
        join(address, _named_by(resources), os.environ.get(NODE_ADDRESS))
    else:
        log("starting Ray on this machine")
        if is_too_late:
            _listen_on_loopback()
        start_ray()
    _made.clear()
    _made.update({name: os.environ[name] for name in (*LOCAL_ENVIRONMENT, OWN_RAY, "HOME") if name in os.environ})
    _made[_ADDRESS] = address or ""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)  # replaces the handlers that Ray installed
    serve_files()
    hush()


_ADDRESS = "address"
_made: dict[str, str] = {}
"""Address and environment variables of this process's connection to Ray. Empty if the process is not connected."""


def _set_environment(address: str | None) -> None:
    """Sets the environment variables that Ray's processes read when they start."""
    for name, value in ({} if address else LOCAL_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    if address:
        os.environ.pop(OWN_RAY, None)  # the variable may come from a parent process that uses another Ray instance
    elif _made:
        os.environ.update({name: value for name, value in _made.items() if name != _ADDRESS})


def _listen_on_loopback() -> None:
    """Makes a Ray that was imported without `LOOPBACK` bind all its sockets to loopback."""
    if untried("ray"):
        raise ClusterError(
            f"this program imported {named('ray')} before dontstop started it, so Ray would listen on all addresses of"
            " this machine",
            f"set the environment variable {LOOPBACK}=0 before the program starts",
        )
    from adapt.ray.private import listen_on_loopback

    listen_on_loopback()


def _check_same(address: str | None) -> None:
    """Raises ClusterError if this process is connected to a cluster at another address."""
    if _made and _made[_ADDRESS] != (address or ""):
        known = _made[_ADDRESS] or "a local Ray instance that it started"
        wanted = f"the cluster at {address}" if address else "a new Ray instance on this machine"
        raise ClusterError(
            f"this process is connected to {known}, and cannot also use {wanted} (resources.address)",
            "call ray.shutdown() first, or use another process",
        )


def is_own_ray() -> bool:
    """Returns whether this process uses a Ray instance that dontstop started.

    Returns False if the process is connected to another cluster, or if the user's program had called `ray.init`.
    """
    return OWN_RAY in os.environ


def disconnect() -> None:
    """Ends the connection that `connect` made, and all work on it. Does not end a connection of the user's program."""
    if not _made:
        return
    ray = ray_library()
    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    deadline = time.monotonic() + DISCONNECT_S
    while ending.is_alive() and time.monotonic() < deadline:
        with suppress(KeyboardInterrupt):  # ignores a second ctrl-C, because Ray is already ending
            ending.join(0.2)
    _made.clear()


DISCONNECT_S = 30.0
"""Time that Ray has to end after a disconnection [s]."""


def hush() -> None:
    """Silences Ray's loggers.

    Call this function again after importing one of Ray's libraries, because the libraries configure their loggers.
    """
    warnings.filterwarnings("ignore", module="ray.data")  # hides advice on tuning for small inputs
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # Ray Data logs the errors that it also raises


def gpus_per_worker(resources: ResourcesConfig) -> float:
    """Returns the configured number of GPUs per worker. By default, this is 1 on a cluster with GPUs, else 0."""
    if resources.gpus_per_worker is not None:
        return resources.gpus_per_worker
    return 1.0 if totals()["GPU"] else 0.0


def hide_unreserved_gpus() -> None:
    """Hides all GPUs from a Ray process that has reserved none. Call it before torch is imported."""
    ray = ray_library()
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def await_resources(resources: ResourcesConfig) -> None:
    """Checks that enough resources are free for the minimum number of workers. Waits for a joined cluster to grow.

    Raises:
        ClusterError: resources are missing; on a cluster, they are still missing after `resources.wait_s`.
    """
    bundle, fewest = bundle_of(resources), fewest_of(resources.workers)
    if placeable_workers(bundle) < fewest and address_of(resources):
        _grow(bundle, resources)
    if (placeable := placeable_workers(bundle)) < fewest:
        raise ClusterError(
            f"the cluster has room for {placeable} of {fewest} workers with {_words(bundle)} each; "
            f"it has {_words(cluster_totals(bundle))} in total",
            f"set resources.workers to at most {max(placeable, 1)}, lower resources.cpus_per_worker or"
            " resources.gpus_per_worker, or add nodes",
        )


def bundle_of(resources: ResourcesConfig) -> dict[str, float]:
    """Returns the resources that each worker reserves on the cluster that this process is connected to."""
    gpus = gpus_per_worker(resources)
    return {"CPU": resources.cpus_per_worker, **({"GPU": gpus} if gpus else {})}


def _grow(bundle: dict[str, float], resources: ResourcesConfig) -> None:
    """Waits for new nodes after requesting a placement group for the maximum number of workers.

    The autoscaler adds up the placement groups that all jobs wait for. Ray's `request_resources` is not used, because
    it is a single request for the whole cluster: each job would overwrite the requests of the other jobs.
    """
    ray = ray_library()
    fewest = fewest_of(resources.workers)
    log(f"waiting up to {resources.wait_s:g} s for {fewest} workers with {_words(bundle)} each")
    group = ray.util.placement_group([bundle] * most_of(resources.workers), strategy="PACK")
    deadline = time.monotonic() + resources.wait_s
    try:
        while placeable_workers(bundle) < fewest and time.monotonic() < deadline:
            time.sleep(1)
    finally:
        ray.util.remove_placement_group(group)  # frees the resources, so that the workers can reserve them


def totals() -> dict[str, float]:
    """Returns the numbers of cores and GPUs that the cluster has now."""
    return cluster_totals({"CPU": 0, "GPU": 0})


def cluster_totals(bundle: dict[str, float]) -> dict[str, float]:
    """Returns the total amounts, in the cluster, of the resources in `bundle`."""
    ray = ray_library()
    return {name: ray.cluster_resources().get(name, 0) for name in bundle}


def placeable_workers(bundle: dict[str, float]) -> int:
    """Returns how many workers with the resources `bundle` fit on an otherwise idle cluster."""
    ray = ray_library()
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(min(node.get(name, 0) / amount for name, amount in bundle.items())) for node in alive)


def _words(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


@contextmanager
def data_settings(object_store_bytes: int | None = None, **settings: Any) -> Iterator[None]:
    """Configures Ray Data for datasets created in the block: no progress output, rows in order, and other settings.

    Args:
        object_store_bytes: limit of the data that waits between tasks [bytes]. If None, Ray's own limit applies, which
            is a share of the machine's memory.
        **settings: further attributes of `ray.data.DataContext`.
    """
    from ray.data import DataContext, ExecutionResources

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    context.issue_detectors_config.detectors = []
    context.raise_original_map_exception = True  # Ray's exception loses its cause when it is sent to another process
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
    """Unwraps dontstop's errors that Ray processes raised, and converts out-of-memory errors to DeviceMemoryError.

    Args:
        takes_less: suggested fix in the error message of a DeviceMemoryError.
        sequences: number of sequences per pass. Use 1 if fewer sequences per pass would not save memory.
        field: configuration field that sets the number of sequences.
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


def batch_errors(field: str | None) -> AbstractContextManager[None]:
    """Returns `user_errors` that tells users to lower a configuration field if memory runs out. None names no field."""
    return user_errors(f"lower {field}, or use machines with more memory", field=field) if field else user_errors()


_LOOK_S = 1.0
"""Time between two checks for stalled tasks [s]."""


@contextmanager
def telling_stalls(stage: str, folder: Path) -> Iterator[None]:
    """Logs the Ray tasks in the block that were killed because they made no progress. Ray runs such tasks again.

    Args:
        stage: name of the stage in messages.
        folder: folder of the stage.

    Raises:
        StallError: the block failed after tasks had stalled, because Ray repeats a task only a limited number of times.
    """
    known = {*folder.glob(f"{STALLS}/*/*.json")}
    told: list[str] = []

    def tell_new() -> None:
        for file in sorted(set(folder.glob(f"{STALLS}/*/*.json")) - known):
            known.add(file)
            told.extend(stall.what() for stall in read_stalls(file.parent))
            log(f"{stage}: {told[-1]}; Ray runs the task again")
            announce("stall", f"{stage}: {told[-1]}")

    def look() -> None:
        while not done.wait(_LOOK_S):
            tell_new()

    def end() -> None:
        done.set()
        looking.join(timeout=5)
        tell_new()

    done = threading.Event()
    looking = threading.Thread(target=copy_context().run, args=(look,), daemon=True)
    looking.start()
    try:
        yield
    except Exception as error:
        end()
        if told and not find_ours(error):
            raise StallError(
                f"{stage}: {told[-1]} (all stacks: {folder / STALLS})",
                "fix the cause, or set resources.stall_s above the time of the slowest call, then run the same command"
                " again",
            ) from error
        raise
    finally:
        end()


def was_killed_for_memory(error: BaseException) -> bool:
    """Returns whether a kill by Ray's memory monitor is among the causes of an error."""
    killed = ray_library().exceptions.OutOfMemoryError
    return any(isinstance(cause, killed) for cause in causes(error))


def lacks_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out.

    Errors of Ray are ignored, because their text contains tracebacks.
    """
    if type(error).__module__.startswith("ray."):
        return False
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in LACK_OF_MEMORY)


def find_ours(error: BaseException) -> AdaptError | None:
    """Finds the first AdaptError among the causes of an error. Returns None if there is none."""
    for cause in causes(error):
        if isinstance(cause, AdaptError):
            # unwraps the original error, because Ray raises a copy that prints the worker's stack trace
            ours = getattr(cause, "cause", cause)
            # leaves out args[0], because Ray Data appends text to it
            return type(ours)(ours.what, ours.fix, *ours.args[2:])
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and all its causes, nearest first, including those in attributes of Ray's errors."""
    waiting: list[Any] = [error]
    seen: set[int] = set()
    for cause in waiting:
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        ranks: dict[int, BaseException] = getattr(cause, "worker_failures", {})
        of_ray = (getattr(cause, name, None) for name in ("controller_failure", "health_check_failure", "cause"))
        waiting += [*ranks.values(), *of_ray, cause.__cause__, cause.__context__]
