"""Work in two steps side by side on the cluster: some read, and each piece of what they read goes to whoever is free.

Ray Data does the same. It takes a second of a core in each process to import, and two processes of its own to begin
with, which is as long as a corpus of some 40 MB takes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from adapt.runtime import user_errors

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
READS, WORKS = 0.05, 0.9
"""Cores that a reader reserves, and one that works on what was read: the latter take what readers leave of a core."""
READ_AHEAD = 24
"""Pieces that each reader is ahead, at most, so that memory does not grow with the corpus."""
GIVEN_OUT = 4
"""Pieces that are worked on or wait for it, for each core."""
TRIES = 3
"""Further tries of a call whose process or machine is gone."""


def relayed(
    read: Callable[[A], Iterator[B]], work: Callable[[B], C], arguments: Iterable[A], after: Any = None
) -> Iterator[C]:
    """What a function makes of each piece that another yields, in the order of pieces of one argument.

    Half of the cores begin to read. A further reader starts whenever all that was read is worked off.

    Args:
        read: yields the pieces of an argument.
        work: is called with a piece.
        arguments: for the readers.
        after: of Ray: nothing is worked on before this is there. Reading begins.

    Raises:
        AdaptError: as one of the functions.
    """
    import ray

    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    reader, worker = _tasks(read, work, after)
    unread, readers, working = deque(arguments), list[Any](), deque[Any]()
    most = (cores + 1) // 2
    try:
        while unread or readers or working:
            while unread and len(readers) < most:
                readers.append(reader(unread.popleft()))
            waited = [*(readers if len(working) < GIVEN_OUT * cores else ()), *list(working)[:1]]
            ready: Any = ray.wait(waited, fetch_local=False)[0][0]
            if ready not in readers:
                yield _given(working.popleft())
                most = min(most + (not working), cores)
            elif (piece := next(ready, None)) is None:
                readers.remove(ready)
            else:
                working.append(worker(piece))
    finally:
        for left in (*readers, *working):
            ray.cancel(left)


def _tasks(read: Any, work: Any, after: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What starts a reader, and what gives a piece to a worker."""
    import ray

    options: dict[str, Any] = {"num_returns": "streaming", "_generator_backpressure_num_objects": READ_AHEAD}
    reader: Any = ray.remote(num_cpus=READS, max_retries=TRIES, **options)(_read)
    worker: Any = ray.remote(num_cpus=WORKS, max_retries=TRIES)(_work)
    return partial(reader.remote, ray.put(read)), partial(worker.remote, ray.put(work), after)


def _read(read: Callable[[A], Iterator[B]], argument: A) -> Iterator[B]:
    yield from read(argument)


def _work(work: Callable[[B], C], after: Any, piece: B) -> C:
    return work(piece)


def _given(reference: Any) -> Any:
    import ray

    with user_errors():
        return ray.get(reference)
