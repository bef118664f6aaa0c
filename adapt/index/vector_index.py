"""Searches an index: all its parts or some, in one process or on several, and how widely it must search for a recall.

The results do not depend on the number of processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from adapt.index.exact_search import Nearest, merge_nearest, nearest_of, ranked
from adapt.index.index_files import IndexFacts
from adapt.index.index_kinds import FIRST_WIDTH, FLAT_VECTORS, Proposer, library, widest
from adapt.index.parts import VectorPart, unit_rows
from adapt.ray.runtime import hide_unreserved_gpus, user_errors
from adapt.support.errors import DataError

QUERIES_AT_ONCE = 2048


@dataclass(frozen=True)
class VectorIndex:
    """An index, or some of its parts."""

    folder: Path
    facts: IndexFacts
    numbers: tuple[int, ...]
    """The parts that are searched."""
    proposers: tuple[Proposer, ...]
    """One for each; none where all vectors are compared."""
    only: np.ndarray | None = None
    """Sorted ids of the vectors that may be found; None for all."""

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: str | None = None,
        numbers: Sequence[int] | None = None,
        only: np.ndarray | None = None,
    ) -> "VectorIndex":
        """Maps the files of an index.

        Args:
            folder: where it was built.
            embedder: what makes the queries; None to take it on trust.
            numbers: parts to search; all by default.
            only: ids of the vectors that may be found, sorted and each once, int64 [n]; all by default.

        Raises:
            DataError: there is no finished index, or another embedder made its vectors.
            StorageError: a file is missing or broken.
        """
        facts = IndexFacts.load(folder)
        if embedder is not None and embedder != facts.embedder:
            raise DataError(
                f"the index in {folder} holds vectors of the embedder {facts.embedder}, and is asked for those near"
                f" vectors of {embedder}",
                "embed both with one embedder, or build an index of this one's vectors",
            )
        chosen = tuple(range(len(facts.parts)) if numbers is None else numbers)
        for number in chosen:
            VectorPart.open(folder, number)
        flat = compares_all(facts, only)
        proposers = (Proposer.open(facts.plan, folder, number, only is not None) for number in chosen)
        return cls(folder, facts, chosen, () if flat else tuple(proposers), only)

    @property
    def is_exact(self) -> bool:
        """Whether all vectors that may be found are compared."""
        return compares_all(self.facts, self.only)

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """The k nearest vectors of each query by cosine.

        Args:
            queries: [q, d], of any length and floating type.
            k: how many are wanted.
            width: how widely to search (`adapt.index.vector_index`); no matter where all vectors are compared.

        Returns:
            Distances (1 - cosine, in float64, from 0 to 2), rising, and ids, int64, both [q, k]. Of equal distances the
            smaller id comes first. Where lists hold fewer than k vectors there are inf and -1 at the end.

        Raises:
            DataError: the queries have another dimension or are not finite, or there are fewer than k vectors.
        """
        return self._searched(queries, k, width, self.proposers)

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """The same, with all vectors compared."""
        return self._searched(queries, k, None, ())

    def _searched(self, queries: np.ndarray, k: int, width: int | None, proposers: Sequence[Proposer]) -> Nearest:
        rows = unit_rows(queries, self.facts.dimension)
        check_neighbours(k, self.facts.vectors if self.only is None else len(self.only))
        found = []
        for place, number in enumerate(self.numbers):
            blocks = []
            for start in range(0, max(len(rows), 1), QUERIES_AT_ONCE):
                part, asked = VectorPart.open(self.folder, number), rows[start : start + QUERIES_AT_ONCE]
                among = None if self.only is None else part.positions_of(self.only)
                if proposers:
                    wide = width or FIRST_WIDTH[self.facts.kind]
                    blocks.append(ranked(part, asked, proposers[place].candidates(asked, k, wide, among), k))
                else:
                    blocks.append(nearest_of(part, asked, k, among))
            found.append((np.concatenate([each[0] for each in blocks]), np.concatenate([each[1] for each in blocks])))
        return merge_nearest(found, k)


def rows_by_id(folder: Path, ids: np.ndarray) -> np.ndarray:
    """The vectors of some documents, of length 1, float16 [n, d].

    Args:
        folder: of the index.
        ids: sorted, all of which it holds, int64 [n].
    """
    facts = IndexFacts.load(folder)
    rows = np.zeros((len(ids), facts.dimension), np.float16)
    for number in range(len(facts.parts)):
        part = VectorPart.open(folder, number)
        positions = part.positions_of(ids)
        rows[np.searchsorted(ids, part.ids[positions])] = part.rows[positions]
    return rows


def compares_all(facts: IndexFacts, only: np.ndarray | None) -> bool:
    """Whether a search compares all vectors that may be found: an index of some candidates is no help where few may."""
    return facts.kind == "flat" or (only is not None and len(only) <= FLAT_VECTORS)


def check_neighbours(k: int, vectors: int) -> None:
    """Refuses to look for more vectors than may be found."""
    if not 0 < k <= vectors:
        raise DataError(
            f"{k} neighbours are wanted, and the index holds {vectors} vectors",
            "ask for fewer neighbours, or give a larger pool",
        )


class Shard:
    """Some parts of an index, in a process of their own."""

    def __init__(
        self, folder: Path, embedder: str | None, numbers: Sequence[int], only: np.ndarray | None, threads: int
    ) -> None:
        hide_unreserved_gpus()
        library().omp_set_num_threads(threads)
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
        threads: int = 1,
    ) -> "ShardedIndex":
        """Starts the actors, on the cluster this process is connected to.

        Args:
            folder: of an index, in a file system that all nodes see.
            shards: at most so many actors, each with some of the parts.
            embedder: what makes the queries; see `VectorIndex.open`.
            only: ids of the vectors that may be found; see `VectorIndex.open`.
            cpus: what an actor reserves.
            threads: that an actor searches with.

        Raises:
            DataError: as `VectorIndex.open`.
        """
        import ray

        facts = VectorIndex.open(folder, embedder, ()).facts
        parts = range(len(facts.parts))
        actor: Any = ray.remote(num_cpus=cpus)(Shard)
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


SAMPLE_QUERIES = 200


class Searchable(Protocol):
    """An index in one process or in several."""

    @property
    def facts(self) -> IndexFacts:
        """What is known of it."""

    @property
    def is_exact(self) -> bool:
        """Whether all vectors that may be found are compared."""

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """See `adapt.index.vector_index`."""

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """See `adapt.index.vector_index`."""


@dataclass(frozen=True)
class Width:
    """How widely to search, and what that finds."""

    width: int | None
    """None where all vectors are compared."""
    recall: float
    """Share of the true neighbours that are found, on a sample of the queries."""


def recall_of(found: Nearest, truth: Nearest) -> float:
    """Share of the wanted neighbours that were found. One as near as the farthest true one is as good."""
    return float((found[0] <= truth[0][:, -1:]).mean()) if truth[0].size else 1.0


def width_for(index: Searchable, queries: np.ndarray, k: int, min_recall: float) -> Width:
    """The least width, of those that double, with which an index finds enough of the nearest vectors.

    Args:
        index: to be searched.
        queries: some, evenly from all over, are the sample [q, d].
        k: neighbours that will be wanted.
        min_recall: the share of them that has to be found.

    Raises:
        DataError: no width finds as many.
    """
    if index.is_exact:
        return Width(None, 1.0)
    plan = index.facts.plan
    sample = queries[:: max(1, -(-len(queries) // SAMPLE_QUERIES))]
    truth = index.search_exactly(sample, k)
    width = FIRST_WIDTH[plan.kind]
    while (recall := recall_of(index.search(sample, k, width), truth)) < min_recall:
        if width >= widest(plan):
            raise DataError(
                f"the index finds {recall:.1%} of the {k} nearest vectors, and {min_recall:.1%} are asked for",
                "choose another kind of index (flat finds all), or lower select.min_recall",
            )
        width = min(2 * width, widest(plan))
    return Width(width, recall)
