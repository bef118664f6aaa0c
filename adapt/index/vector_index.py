"""Searches an index in one process, and finds the width of search at which a required recall is reached.

The width is the number of inverted lists that a search compares, or the number of candidates that the search stores
while it walks through the graph. A larger width finds more of the true neighbours and takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from adapt.index.exact_search import Nearest, VectorPart, merge_nearest, nearest_of, ranked, unit_rows
from adapt.index.index_files import FIRST_WIDTH, FLAT_VECTORS, IndexFacts, Proposer, widest
from adapt.support.errors import DataError

QUERIES_AT_ONCE = 2048


@dataclass(frozen=True)
class VectorIndex:
    """An opened index, or some of its parts (at most 2^20 vectors each), searched in this process."""

    folder: Path
    facts: IndexFacts
    numbers: tuple[int, ...]
    """Numbers of the parts of the index that are searched."""
    proposers: tuple[Proposer, ...]
    """Objects that propose candidates, one per searched part. Empty if a search compares all vectors."""
    only: np.ndarray | None = None
    """Sorted ids of the vectors to search. None searches all vectors."""

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: str | None = None,
        numbers: Sequence[int] | None = None,
        only: np.ndarray | None = None,
    ) -> "VectorIndex":
        """Memory-maps the files of an index.

        Args:
          folder: folder of the index.
          embedder: identity of the queries' embedder, which must equal the identity in the index. None skips this
          check.
          numbers: numbers of the parts to search. None searches all parts.
          only: distinct sorted ids of the vectors to search, int64 [n]. None searches all vectors.

        Raises:
          DataError: there is no finished index, or its vectors come from another embedder.
          StorageError: a file is missing or damaged.
        """
        facts = IndexFacts.load(folder)
        if embedder is not None and embedder != facts.embedder:
            raise DataError(
                f"the index in {folder} holds vectors of the embedder {facts.embedder}, but the queries are vectors of"
                f" {embedder}",
                "embed the queries with the index's embedder, or build the index again with the queries' embedder",
            )
        chosen = tuple(range(len(facts.parts)) if numbers is None else numbers)
        for number in chosen:
            VectorPart.open(folder, number)
        flat = compares_all(facts, only)
        proposers = (Proposer.open(facts, folder, number, only is not None) for number in chosen)
        return cls(folder, facts, chosen, () if flat else tuple(proposers), only)

    @property
    def is_exact(self) -> bool:
        """Whether searches compare all vectors, so that results are exact."""
        return compares_all(self.facts, self.only)

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """Finds the k nearest vectors of each query by cosine.

        Args:
          queries: vectors of any norm and floating type [q, d].
          k: number of neighbours per query.
          width: width of the search (see this module); None for the default. Exact searches ignore it.

        Returns:
          Distances (1 - cosine, float64, from 0 to 2) in ascending order, and ids (int64), both [q, k]. Equal distances
          are ordered by id. A query for which the search finds fewer than k vectors has inf and -1 at the end.

        Raises:
          DataError: the queries have another dimension.
        """
        return self._searched(queries, k, width, self.proposers)

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """Finds the k nearest vectors of each query like `search`, but by comparing all vectors."""
        return self._searched(queries, k, None, ())

    def _searched(self, queries: np.ndarray, k: int, width: int | None, proposers: Sequence[Proposer]) -> Nearest:
        rows = unit_rows(queries, self.facts.dimension)
        results = []
        for index, number in enumerate(self.numbers):
            blocks = []
            for start in range(0, max(len(rows), 1), QUERIES_AT_ONCE):
                part, block = VectorPart.open(self.folder, number), rows[start : start + QUERIES_AT_ONCE]
                among = None if self.only is None else part.positions_of(self.only)
                if proposers:
                    wide = width or FIRST_WIDTH[self.facts.kind]
                    blocks.append(ranked(part, block, proposers[index].candidates(block, k, wide, among), k))
                else:
                    blocks.append(nearest_of(part, block, k, among))
            distances, ids = zip(*blocks, strict=True)
            results.append((np.concatenate(distances), np.concatenate(ids)))
        return merge_nearest(results, k)


def rows_by_id(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Returns the vectors with the given ids, scaled to length 1, float16 [n, d].

    The ids are sorted, int64 [n]. All of them must be in the index.
    """
    facts = IndexFacts.load(folder)
    rows = np.zeros((len(ids), facts.dimension), np.float16)
    for number in range(len(facts.parts)):
        part = VectorPart.open(folder, number)
        positions = part.positions_of(ids)
        rows[np.searchsorted(ids, part.ids[positions])] = part.rows[positions]
    return rows


def compares_all(facts: IndexFacts, only: np.ndarray | None) -> bool:
    """Returns whether a search compares the queries with all vectors to search, without using a faiss index.

    This holds for a flat index, and for a search that is limited to at most FLAT_VECTORS vectors.
    """
    return facts.kind == "flat" or (only is not None and len(only) <= FLAT_VECTORS)


SAMPLE_QUERIES = 200
"""Number of queries on which `width_for` measures the recall."""


class Searchable(Protocol):
    """An index in one process (`VectorIndex`) or in several (`ShardedIndex`)."""

    @property
    def facts(self) -> IndexFacts:
        """The description of the index in `index.json`."""

    @property
    def is_exact(self) -> bool:
        """Whether searches compare all vectors, so that results are exact."""

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """Finds the k nearest vectors of each query; see `VectorIndex.search`."""

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """Finds the k nearest vectors of each query by comparing all vectors; see `VectorIndex.search_exactly`."""


@dataclass(frozen=True)
class Width:
    """A width of search and its measured recall."""

    width: int | None
    """Number of inverted lists to search, or of candidates to store in a graph search. None if all vectors are
    compared."""
    recall: float
    """Share of the true neighbours that searches of this width found, measured on a sample of the queries."""


def recall_of(found: Nearest, truth: Nearest) -> float:
    """Returns the share of the true neighbours that a search found.

    A found vector counts as a true neighbour if its distance from the query is at most the distance of the query's k-th
    true neighbour.
    """
    return float((found[0] <= truth[0][:, -1:]).mean()) if truth[0].size else 1.0


def width_for(index: Searchable, queries: np.ndarray, k: int, min_recall: float) -> Width:
    """Returns the first width, doubling at each try, at which an index finds enough of the true neighbours.

    The recall is measured on an evenly spread sample of the queries [q, d].

    Raises:
      DataError: no width reaches the recall `min_recall`.
    """
    if index.is_exact:
        return Width(None, 1.0)
    sample = queries[:: max(1, -(-len(queries) // SAMPLE_QUERIES))]
    truth = index.search_exactly(sample, k)
    width = FIRST_WIDTH[index.facts.kind]
    while (recall := recall_of(index.search(sample, k, width), truth)) < min_recall:
        if width >= widest(index.facts):
            raise DataError(
                f"the index finds {recall:.1%} of the {k} nearest vectors, but {min_recall:.1%} are required",
                "choose another kind of index (flat finds all), or lower select.min_recall",
            )
        width = min(2 * width, widest(index.facts))
    return Width(width, recall)
