"""Calls of a function side by side on the cluster. Answers come in the order of the calls, whoever made them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from adapt.config import ResourcesConfig
from adapt.runtime import connect, gpus_per_worker, user_errors

A = TypeVar("A")
T = TypeVar("T")
AHEAD = 2
"""Calls that are under way or wait, for each process: so none is idle, and results do not pile up."""
TRIES = 3
"""Further tries of a call whose process or machine is gone."""


def spread(
    function: Callable[[A], Iterator[T]], arguments: Iterable[A], resources: ResourcesConfig, on_device: bool = False
) -> Iterator[Iterator[T]]:
    """What a generator function yields for each argument, as it comes; to be read before the next is asked for.

    Args:
        function: goes to other processes, once to each machine.
        arguments: drawn one at a time, when a call is about to be made.
        resources: the cluster.
        on_device: each process has a GPU of the cluster, or where it has none a machine's cores, and keeps the function
            from call to call, with what it has loaded. Otherwise each has a core.

    Raises:
        AdaptError: as the function.
    """
    import ray

    connect(resources)
    given = ray.put(function)
    call, processes = _on_devices(given, resources) if on_device else _on_cores(given)
    waiting: deque[Any] = deque()
    try:
        for argument in arguments:
            waiting.append(call(argument))
            if len(waiting) == AHEAD * processes:
                yield _yielded(waiting.popleft())
        while waiting:
            yield _yielded(waiting.popleft())
    finally:
        for unread in waiting:  # nobody will read them
            ray.cancel(unread)


def _yielded(references: Iterator[Any]) -> Iterator[Any]:
    import ray

    with user_errors():
        for reference in references:
            yield ray.get(reference)


Calls = tuple[Callable[[Any], Any], int]
"""What makes a call, and the number of processes."""


def _on_cores(given: Any) -> Calls:
    import ray

    task: Any = ray.remote(num_cpus=1, num_returns="streaming", max_retries=TRIES)(_call)
    return partial(task.remote, given), max(1, int(ray.cluster_resources().get("CPU", 1)))


def _on_devices(given: Any, resources: ResourcesConfig) -> Calls:
    """Actors take turns: calls are of much the same size."""
    import ray

    gpus = min(1.0, gpus_per_worker(resources))
    machines = sum(node["Alive"] for node in ray.nodes())
    count = max(1, int(ray.cluster_resources().get("GPU", 0) / gpus)) if gpus else machines
    start: Any = ray.remote(
        num_cpus=1, num_gpus=gpus, max_restarts=TRIES, max_task_retries=TRIES, scheduling_strategy="SPREAD"
    )(_Device)
    actors = deque(start.remote(given) for _ in range(count))

    def call(argument: Any) -> Any:
        actors.rotate(-1)
        return actors[-1].call.options(num_returns="streaming").remote(argument)

    return call, count


def _call(function: Callable[[A], Iterator[T]], argument: A) -> Iterator[T]:
    yield from function(argument)


class _Device:
    """An actor that keeps a function."""

    def __init__(self, function: Callable[[Any], Iterator[Any]]) -> None:
        self._function = function

    def call(self, argument: Any) -> Iterator[Any]:
        yield from self._function(argument)
