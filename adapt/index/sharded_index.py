"""Searches an index in several processes, each of which searches some parts of the index. This module loads Ray."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from adapt.index import index_files, vector_index
from adapt.index.exact_search import Nearest, faiss_library, merge_nearest
from adapt.ray import node_files, runtime
from adapt.runner.claim import stage_at_work


class Shard:
    """An actor that searches some parts of an index in its own process."""

    def __init__(
        self,
        folder: Path,
        embedder: str | None,
        numbers: Sequence[int],
        only: np.ndarray | None,
        threads: int,
        stage: Path | None,
    ) -> None:
        runtime.hide_unreserved_gpus()
        faiss_library().omp_set_num_threads(threads)
        with node_files.on_node(stage):
            self._index = vector_index.VectorIndex.open(folder, embedder, numbers, only)

    def search(self, queries: np.ndarray, k: int, width: int | None, exactly: bool) -> Nearest:
        """Finds the k nearest vectors of each query in the actor's parts. With `exactly`, compares all vectors."""
        return self._index.search_exactly(queries, k) if exactly else self._index.search(queries, k, width)


@dataclass(frozen=True)
class ShardedIndex:
    """An index whose parts are searched in parallel by several actors. The actors end when this object is deleted."""

    facts: index_files.IndexFacts
    is_exact: bool
    """Whether searches compare all vectors, so that results are exact."""
    actors: tuple[Any, ...]

    @classmethod
    def start(
        cls,
        folder: Path,
        shards: int,
        embedder: str | None = None,
        only: np.ndarray | None = None,
        cpus: float = 1.0,
        threads: int = 1,
    ) -> "ShardedIndex":
        """Starts the actors on the cluster to which this process is connected.

        Divides the parts among at most `shards` actors. Each actor reserves `cpus` CPUs and uses `threads`
        threads. The other arguments are those of `VectorIndex.open`.
        """
        facts = vector_index.VectorIndex.open(folder, embedder, ()).facts
        parts = range(len(facts.parts))
        actor: Any = ray.remote(num_cpus=cpus)(Shard)
        shares = [parts[number::shards] for number in range(min(shards, len(parts)))]
        known = ray.put(only)
        actors = tuple(actor.remote(folder, embedder, list(each), known, threads, stage_at_work()) for each in shares)
        return cls(facts, vector_index.compares_all(facts, only), actors)

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """Finds the k nearest vectors of each query; see `VectorIndex.search`."""
        return self._searched(queries, k, width, False)

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """Finds the k nearest vectors of each query by comparing all vectors; see `VectorIndex.search_exactly`."""
        return self._searched(queries, k, None, True)

    def _searched(self, queries: np.ndarray, k: int, width: int | None, exactly: bool) -> Nearest:
        shared = ray.put(queries)
        with runtime.user_errors():
            results = ray.get([actor.search.remote(shared, k, width, exactly) for actor in self.actors])
            return merge_nearest(results, k)
