"""A streamed corpus is read once for all ranks: an actor makes the global batches, and each rank asks for its share."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from adapt.corpus.streaming.online import Online
from adapt.corpus.streaming.window import Columns, take_places
from adapt.ray.runtime import user_errors

AHEAD = 4
"""Batches that a rank asks for before it needs them, so that they travel while it trains."""


class Server:
    """Holds each batch until all ranks have their share of it. They are at most AHEAD steps apart, and so is memory."""

    def __init__(self, online: Online, first_step: int, world: int, parallel: bool = True) -> None:
        self._batches = online.batches(first_step, parallel)
        self._next = first_step
        self._world = world
        self._held: dict[int, tuple[Columns | None, int]] = {}
        self._error: Exception | None = None

    def share(self, step: int, rank: int) -> Columns | None:
        """A rank's part of a step's batch; None after the end of the corpus. An error is raised to all ranks."""
        while self._next <= step:
            self._held[self._next] = self._make(), self._world
            self._next += 1
        batch, left = self._held.pop(step)
        if left > 1:
            self._held[step] = batch, left - 1
        if batch is None:
            return None
        rows = len(batch["rows"]) // self._world
        return take_places(batch, slice(rank * rows, (rank + 1) * rows))

    def _make(self) -> Columns | None:
        if self._error:  # what has failed looks exhausted from then on
            raise self._error
        try:
            return next(self._batches, None)
        except Exception as error:
            self._error = error
            raise


def serve(online: Online, first_step: int, world: int) -> Any:
    """Starts the actor, which lives as long as the process that starts it."""
    import ray

    return ray.remote(num_cpus=0)(Server).remote(online, first_step, world)


@contextmanager
def served(server: Any, rank: int, first_step: int, last_step: int) -> Iterator[Iterator[Columns]]:
    """A rank's shares of the steps [first_step, last_step), or up to the end of the corpus.

    Raises:
        DataError: where the server met one; all ranks get it.
    """
    shares = _shares(server, rank, first_step, last_step)
    first = next(shares, None)  # waiting for it belongs to the job's start, not to the first step
    yield iter(()) if first is None else chain([first], shares)


def _shares(server: Any, rank: int, first_step: int, last_step: int) -> Iterator[Columns]:
    import ray

    asked: deque[Any] = deque()
    steps = iter(range(first_step, last_step))
    while True:
        asked += [server.share.remote(step, rank) for step in islice(steps, AHEAD - len(asked))]
        if not asked:
            return
        with user_errors():
            share = ray.get(asked.popleft())
        if share is None:
            return
        yield share
