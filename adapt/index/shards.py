"""The parts of an index on several processes of a cluster. What they find does not depend on how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.index.build import IndexFacts
from adapt.index.merge import Nearest, merge_nearest
from adapt.index.search import VectorIndex, check_neighbours, compares_all
from adapt.ray.runtime import hide_unreserved_gpus, user_errors


class Shard:
    """Some parts of an index, in a process of their own."""

    def __init__(
        self, folder: Path, embedder: str | None, numbers: Sequence[int], only: np.ndarray | None, threads: int
    ) -> None:
        hide_unreserved_gpus()
        import faiss

        faiss.omp_set_num_threads(threads)
        self._index = VectorIndex.open(folder, embedder, numbers, only)

    def search(self, queries: np.ndarray, k: int, width: int | None, exactly: bool) -> Nearest:
        """The nearest of these parts."""
        return self._index.search_exactly(queries, k) if exactly else self._index.search(queries, k, width)


@dataclass(frozen=True)
class ShardedIndex:
    """An index whose parts lie with several actors, which are asked side by side. They end when it is let go."""

    facts: IndexFacts
    found: int
    """How many vectors may be found."""
    is_exact: bool
    """See `VectorIndex`."""
    actors: tuple[Any, ...]

    @classmethod
    def start(
        cls,
        folder: Path,
        shards: int,
        embedder: str | None = None,
        only: np.ndarray | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        threads: int = 1,
    ) -> "ShardedIndex":
        """Starts the actors, on the cluster this process is connected to.

        Args:
            folder: of an index, in a file system that all nodes see.
            shards: at most so many actors, each with some of the parts.
            embedder: what makes the queries; see `VectorIndex.open`.
            only: ids of the vectors that may be found; see `VectorIndex.open`.
            cpus: what an actor reserves.
            gpus: what an actor reserves.
            threads: that an actor searches with.

        Raises:
            DataError: as `VectorIndex.open`.
        """
        import ray

        facts = VectorIndex.open(folder, embedder, ()).facts
        parts = range(len(facts.parts))
        actor: Any = ray.remote(num_cpus=cpus, num_gpus=gpus)(Shard)
        shares = [parts[number::shards] for number in range(min(shards, len(parts)))]
        known = ray.put(only)
        actors = tuple(actor.remote(folder, embedder, list(each), known, threads) for each in shares)
        return cls(facts, facts.vectors if only is None else len(only), compares_all(facts, only), actors)

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """See `VectorIndex.search`."""
        return self._searched(queries, k, width, False)

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """See `VectorIndex.search_exactly`."""
        return self._searched(queries, k, None, True)

    def _searched(self, queries: np.ndarray, k: int, width: int | None, exactly: bool) -> Nearest:
        import ray

        check_neighbours(k, self.found)
        given = ray.put(queries)
        with user_errors():
            found = ray.get([actor.search.remote(given, k, width, exactly) for actor in self.actors])
            return merge_nearest(found, k)
