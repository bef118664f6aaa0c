"""What selections by vectors share: the vectors of pool and target, and scores that documents have by their ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from adapt.errors import DataError
from adapt.index.build import IndexFacts
from adapt.index.merge import NOBODY
from adapt.index.recall import Searchable, width_for
from adapt.select.base import Given, Vectors

QUERIES_AT_ONCE = 4096
DOCUMENTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Found:
    """Neighbours of some texts of the target: one row a pair of text and document."""

    texts: np.ndarray
    """Numbers of the texts, int64 [n], rising."""
    ids: np.ndarray
    """Of the documents, int64 [n]."""
    ranks: np.ndarray
    """0 for the nearest of a text, int64 [n]."""
    distances: np.ndarray
    """1 - cosine, float64 [n]."""


class Nearby:
    """The documents near the texts of a target, among those that may be taken.

    Args:
        given: has the vectors, and says which documents may be taken.

    Raises:
        DataError: the vectors are not of one embedder, no document may be taken, or no text of the target has a vector
            other than 0.
    """

    def __init__(self, given: Given) -> None:
        vectors = vectors_of(given)
        self.index = _opened(given, vectors)
        self.documents = IndexFacts.load(vectors.pool).vectors if given.permitted is None else len(given.permitted)
        assert vectors.target is not None
        rows = target_rows(vectors.target)
        self.texts = len(rows)
        self.rows = rows[rows.any(1)]  # a text of which nothing is known is like nothing
        if not len(self.rows) or not self.documents:
            what = (
                "the embedder knows nothing of the target" if self.documents else "no document is left to choose from"
            )
            raise DataError(what, "choose another select.embedder, or check select.pool_paths and select.target_paths")
        self._min_recall = given.config.select.min_recall
        self.recall = 1.0
        """Share of the true neighbours that the last search has found, measured on a sample."""

    def search(self, k: int) -> Iterator[Found]:
        """The k nearest documents of each text, for some texts at a time.

        Raises:
            DataError: there are fewer documents, or the index finds too few of the nearest ones.
        """
        if k > self.documents:
            raise DataError(
                f"{k} neighbours of each text are wanted, and the pool has {self.documents} documents",
                "lower the budget (select.per_example), or give a larger pool",
            )
        width = width_for(self.index, self.rows, k, self._min_recall)
        self.recall = width.recall
        for start in range(0, len(self.rows), QUERIES_AT_ONCE):
            distances, ids = self.index.search(self.rows[start : start + QUERIES_AT_ONCE], k, width.width)
            texts, ranks = np.nonzero(ids != NOBODY)
            yield Found(start + texts, ids[texts, ranks], ranks, distances[texts, ranks])


def vectors_of(given: Given) -> Vectors:
    """The vectors that a selection has asked for."""
    assert given.vectors is not None, "Selection.vectors names what is read"
    return given.vectors


def target_rows(folder: Path) -> np.ndarray:
    """The vectors of the target's texts, in their order, float16 or float32 [n, d]."""
    from adapt.embed.written import stored_vectors

    return np.concatenate([vectors for _, vectors in stored_vectors(folder)])


def scores_by_id(pool: Iterable[str], ids: np.ndarray, scores: np.ndarray, others: float) -> Iterator[float]:
    """The score of each document of a pool.

    Args:
        pool: documents, which have ids.
        ids: of those with a score of their own, sorted, int64 [n].
        scores: theirs, float64 [n].
        others: that of all others.
    """
    documents: Iterator[Any] = iter(pool)
    while some := [document.id for document in islice(documents, DOCUMENTS_AT_ONCE)]:
        wanted = np.array(some, np.int64)
        places = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
        known = ids[places] == wanted if len(ids) else np.zeros(len(wanted), bool)
        yield from np.where(known, scores[places] if len(ids) else others, others).tolist()


def _opened(given: Given, vectors: Vectors) -> Searchable:
    """The index, in this process; where it has several parts, in as many of the cluster as there are cores for."""
    from adapt.index.search import VectorIndex

    parts = len(IndexFacts.load(vectors.pool).parts)
    if parts == 1:
        return VectorIndex.open(vectors.pool, vectors.space, only=given.permitted)
    import ray

    from adapt.index.shards import ShardedIndex
    from adapt.runtime import connect

    connect(given.config.resources)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return ShardedIndex.start(vectors.pool, cpus, vectors.space, given.permitted, cpus=0, threads=max(1, cpus // parts))
