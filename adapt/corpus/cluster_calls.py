"""Calls a function in parallel on the cluster, and returns the results in the order of the calls."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray

from adapt.config import ResourcesConfig
from adapt.ray import node_files, runtime
from adapt.support.heartbeat import Steady

A = TypeVar("A")
T = TypeVar("T")
AHEAD = 2
"""Maximum number of running and waiting calls per process. One waiting call per process suffices to keep the process
busy. A larger number would let unread results accumulate."""
TRIES = 3
"""Maximum number of times that a call is repeated because its process or machine was lost."""


class Cluster:
    """Calls functions in tasks or GPU actors of the cluster. The connection and the actors start at the first call.

    Args:
        resources: section `resources` of the configuration, which says how to connect to the cluster.
        folder: folder of the stage. Processes that make no progress are recorded there and killed, and Ray repeats
            their calls.
    """

    def __init__(self, resources: ResourcesConfig, folder: Path) -> None:
        self._resources, self.folder = resources, folder.absolute()
        self._devices: deque[Any] = deque()
        """Actors with one device each. They run as long as this object exists."""

    def spread(
        self, function: Callable[[A], Iterator[T]], arguments: Iterable[A], on_device: bool = False
    ) -> Iterator[Iterator[T]]:
        """Calls a generator function in parallel, once per argument, and yields an iterator over each call's results.

        Each iterator must be read to its end before the next one is requested.

        Args:
            function: generator function, which is sent to other processes.
            arguments: arguments of the calls, drawn one at a time shortly before each call.
            on_device: whether to call the function in actors with one GPU each, or in one actor per machine if the
                cluster has no GPU. Actors keep the models that the function has loaded. If False, each call is a task
                with one core.

        Raises:
            AdaptError: the called function raised this error.
        """
        runtime.connect(self._resources)
        shared = ray.put(node_files.OnNode(Steady(function, "reading", self.folder, self._resources.stall_s)))
        call, processes = self._on_devices(shared) if on_device else _on_cores(shared)
        waiting: deque[Any] = deque()
        try:
            for argument in arguments:
                waiting.append(call(argument))
                if len(waiting) == AHEAD * processes:
                    yield _yielded(waiting.popleft())
            while waiting:
                yield _yielded(waiting.popleft())
        finally:
            for unread in waiting:  # cancels the calls that still run after an error, or after the caller stopped early
                ray.cancel(unread)

    def _on_devices(self, shared: Any) -> tuple[Callable[[Any], Any], int]:
        """Returns a function that starts a call on an actor, and the number of actors.

        Actors take turns, because calls take about equally long.
        """
        if not self._devices:
            gpus = min(1.0, runtime.gpus_per_worker(self._resources))
            machines = sum(node["Alive"] for node in ray.nodes())
            count = max(1, int(ray.cluster_resources().get("GPU", 0) / gpus)) if gpus else machines
            start: Any = ray.remote(
                num_cpus=1, num_gpus=gpus, max_restarts=TRIES, max_task_retries=TRIES, scheduling_strategy="SPREAD"
            )(_Device)
            self._devices.extend(start.remote() for _ in range(count))

        def call(argument: Any) -> Any:
            self._devices.rotate(-1)
            return self._devices[-1].call.options(num_returns="streaming").remote([shared], argument)

        return call, len(self._devices)


def _on_cores(shared: Any) -> tuple[Callable[[Any], Any], int]:
    """Returns a function that starts a call in a task, and the number of tasks that run in parallel."""
    task: Any = ray.remote(num_cpus=1, num_returns="streaming", max_retries=TRIES)(_call)
    return partial(task.remote, shared), max(1, int(ray.cluster_resources().get("CPU", 1)))


def _yielded(references: Iterator[Any]) -> Iterator[Any]:
    with runtime.user_errors():
        for reference in references:
            yield ray.get(reference)


def _call(function: Callable[[A], Iterator[T]], argument: A) -> Iterator[T]:
    yield from function(argument)


class _Device:
    """An actor that keeps the last function that it called, so that the next call need not load the function again."""

    def __init__(self) -> None:
        self._reference: Any = None
        self._function: Any = None

    def call(self, shared: list[Any], argument: Any) -> Iterator[Any]:
        """Calls a function that is in Ray's object store.

        The list `shared` contains the reference to the function. Ray would fetch the function at each call if the
        reference were not in a list.
        """
        if shared[0] != self._reference:
            self._reference, self._function = shared[0], ray.get(shared[0])
        yield from self._function(argument)
