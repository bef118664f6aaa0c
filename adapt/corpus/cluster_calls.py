"""Calls of a function side by side on the cluster. Answers come in the order of the calls, whoever made them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import ray

from adapt.config import ResourcesConfig
from adapt.ray.runtime import connect, gpus_per_worker, user_errors

A = TypeVar("A")
T = TypeVar("T")
AHEAD = 2
"""Calls that are under way or wait, for each process: so none is idle, and results do not pile up."""
TRIES = 3
"""Further tries of a call whose process or machine is gone."""


class Cluster:
    """Where functions are called. Nothing is started before the first call.

    Args:
        resources: the cluster.
    """

    def __init__(self, resources: ResourcesConfig) -> None:
        self._resources = resources
        self._devices: deque[Any] = deque()
        """Actors with a device each; they live as long as this."""

    def spread(
        self, function: Callable[[A], Iterator[T]], arguments: Iterable[A], on_device: bool = False
    ) -> Iterator[Iterator[T]]:
        """What a generator function yields for each argument, as it comes; to be read before the next is asked for.

        Args:
            function: goes to other processes.
            arguments: drawn one at a time, when a call is about to be made.
            on_device: each process has a GPU of the cluster, or where it has none a machine's cores, and keeps what it
                has loaded from call to call. Otherwise each has a core.

        Raises:
            AdaptError: as the function.
        """
        connect(self._resources)
        given = ray.put(function)
        call, processes = self._on_devices(given) if on_device else _on_cores(given)
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

    def _on_devices(self, given: Any) -> tuple[Callable[[Any], Any], int]:
        """What makes a call, and the number of processes. They take turns, since calls are of much the same size."""
        if not self._devices:
            gpus = min(1.0, gpus_per_worker(self._resources))
            machines = sum(node["Alive"] for node in ray.nodes())
            count = max(1, int(ray.cluster_resources().get("GPU", 0) / gpus)) if gpus else machines
            start: Any = ray.remote(
                num_cpus=1, num_gpus=gpus, max_restarts=TRIES, max_task_retries=TRIES, scheduling_strategy="SPREAD"
            )(_Device)
            self._devices.extend(start.remote() for _ in range(count))

        def call(argument: Any) -> Any:
            self._devices.rotate(-1)
            return self._devices[-1].call.options(num_returns="streaming").remote([given], argument)

        return call, len(self._devices)


def _on_cores(given: Any) -> tuple[Callable[[Any], Any], int]:
    """As `Cluster._on_devices`, on tasks."""
    task: Any = ray.remote(num_cpus=1, num_returns="streaming", max_retries=TRIES)(_call)
    return partial(task.remote, given), max(1, int(ray.cluster_resources().get("CPU", 1)))


def _yielded(references: Iterator[Any]) -> Iterator[Any]:
    with user_errors():
        for reference in references:
            yield ray.get(reference)


def _call(function: Callable[[A], Iterator[T]], argument: A) -> Iterator[T]:
    yield from function(argument)


class _Device:
    """An actor that keeps the function of its last call."""

    def __init__(self) -> None:
        self._given: Any = None
        self._function: Any = None

    def call(self, given: list[Any], argument: Any) -> Iterator[Any]:
        """Calls a function, which is given as a reference in a list, so that Ray does not fetch it each time."""
        if given[0] != self._given:
            self._given, self._function = given[0], ray.get(given[0])
        yield from self._function(argument)
