"""Searches for documents near given vectors, for all selections by vectors. Selection `knn` takes these documents.

Selection `knn` takes the nearest documents of each target text (kNN-TAPT; Don't Stop Pretraining, section 5.3). With
`select.per_example: k`, the k nearest documents (by cosine) of each target text are selected. Fewer documents are
selected if texts share neighbours. A document's score is its highest similarity to a text that has it as a neighbour.
If another selection follows, the k x `select.keep` nearest documents of each text are passed on.

If the budget is not set by `select.per_example`, k is the smallest number that fills the budget. Documents that are the
nearest neighbour of some text come first, then the second nearest neighbours, and so on, so that every text has its
share. Documents of the same rank are ordered by similarity. The score is similarity - 2 x (rank - 1), where the rank is
the document's best rank over all texts. Similarities are from -1 to 1, so documents of different ranks do not mix, and
searching more neighbours than needed does not change the selection.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adapt.embed.vector_files import stored_vectors
from adapt.index.exact_search import NOBODY, Nearest, centred
from adapt.index.index_files import IndexFacts, centre_in
from adapt.index.vector_index import Searchable, VectorIndex, Width, width_for
from adapt.ray.runtime import connect, totals
from adapt.select.selection import NEVER, Given, NoOptions, Offer, Room, Selection, VectorsOf
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from adapt.select.pool import Document


CHARACTERS = 200
"""Assumed lower limit of the mean document length [characters]. For shorter documents, a second search finds more."""
QUERIES_AT_ONCE = 4096
DOCUMENTS_AT_ONCE = 4096


class NearestDocuments:
    """Finds the permitted documents that are nearest to given vectors.

    Raises:
        DataError: no document is permitted, or the vectors of pool and target are from different embedders.
    """

    def __init__(self, given: Given) -> None:
        self.documents = documents_of(given)
        self._index = _opened(given)
        self._min_recall = given.config.select.min_recall
        self._widths: dict[int, Width] = {}
        """Search widths, keyed by the number of neighbours. A width is measured in the first search for this
        number of neighbours."""

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the index out when pickled, because the processes that score documents do not search it."""
        return {**vars(self), "_index": None}

    @property
    def recall(self) -> float:
        """Recall of the worst search so far: the share of true neighbours that it found, measured on a sample.

        The value is 1 before the first search.
        """
        return min((width.recall for width in self._widths.values()), default=1.0)

    def search(self, rows: np.ndarray, k: int) -> Iterator[Nearest]:
        """Yields the k nearest documents of each row, a limited number of rows at a time.

        Args:
            rows: vectors of any length [n, d].
            k: number of documents per row.

        Raises:
            DataError: there are fewer than k documents, or the index finds too few of the nearest documents.
        """
        check_enough(k, self.documents)
        if k not in self._widths:
            self._widths[k] = width_for(self._index, rows, k, self._min_recall)
        width = self._widths[k]
        for start in range(0, len(rows), QUERIES_AT_ONCE):
            yield self._index.search(rows[start : start + QUERIES_AT_ONCE], k, width.width)


def wanted_documents(room: Room) -> int:
    """Returns the number of documents that a search must find to reach the limits on held texts."""
    return room.documents if room.documents is not None else ceil((room.characters or 0) / CHARACTERS)


def documents_of(given: Given) -> int:
    """Returns the number of permitted documents of the pool that have vectors.

    Raises:
        DataError: no permitted document has a vector.
    """
    assert given.vectors is not None, "Selection.vectors names what is read"
    count = IndexFacts.load(given.vectors.pool).vectors if given.permitted is None else len(given.permitted)
    if not count:
        raise DataError(
            "no document is left to choose from", "make the earlier selections in select.kind pass on more documents"
        )
    return count


def check_enough(k: int, documents: int) -> None:
    """Checks that there are at least k documents.

    Raises:
        DataError: there are fewer than k documents.
    """
    if k > documents:
        raise DataError(
            f"{k} neighbours of each text are needed, but the pool has only {documents} documents",
            "lower the budget (select.per_example; in a list of selections also select.keep), or provide a larger pool",
        )


class TargetRows(NamedTuple):
    """The vectors of the target's texts, and the number of texts without a vector."""

    rows: np.ndarray
    """Vectors of the target's texts, in the order of the texts, without vectors of length 0 [n, d]."""
    unknown: int
    """Number of texts whose vector is 0, because the embedder knows none of their words. Such texts have no
    neighbours."""


def target_rows(given: Given) -> TargetRows:
    """Reads the vectors of the target.

    Raises:
        DataError: all vectors are 0.
    """
    assert given.vectors is not None
    assert given.vectors.target is not None, "Selection.vectors names what is read"
    rows = np.concatenate([vectors for _, vectors in stored_vectors(given.vectors.target)])
    known = rows.any(1)
    if (centre := centre_in(given.vectors.pool)) is not None:
        rows = centred(rows, centre)
    if not known.any():
        what = f"the embedder {given.config.select.embedder} knows no word of the {len(rows)} texts of the target"
        raise DataError(what, "choose another select.embedder, or check the texts of the target")
    return TargetRows(rows[known], int((~known).sum()))


def scores_by_id(pool: "Iterable[Document]", ids: np.ndarray, scores: np.ndarray, others: float) -> Iterator[float]:
    """Yields the score of each document of a pool.

    Args:
        pool: documents with ids.
        ids: sorted ids of the documents with their own score, at least one, int64 [n].
        scores: scores of these documents, float64 [n].
        others: score of all other documents.
    """

    def known(wanted: np.ndarray) -> np.ndarray:
        places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[places] == wanted, scores[places], others)

    return each_by_id(pool, known)


def are_among(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns, for each id in `wanted`, whether it is among the sorted `ids`: bool [n]."""
    places = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
    found: np.ndarray = ids[places] == wanted if len(ids) else np.zeros(len(wanted), bool)
    return found


def each_by_id(pool: "Iterable[Document]", function: Callable[[np.ndarray], np.ndarray]) -> Iterator[float]:
    """Yields a function's value for the id of each document of a pool. The function is called with arrays of ids."""
    documents = iter(pool)
    while some := [document.id for document in islice(documents, DOCUMENTS_AT_ONCE)]:
        yield from function(np.array(some, np.int64)).tolist()


def _opened(given: Given) -> Searchable:
    """Opens the index in this process or, if it has several parts, in tasks of the cluster, one per core."""
    assert given.vectors is not None
    folder, space = given.vectors.pool, given.vectors.space
    parts = len(IndexFacts.load(folder).parts)
    if parts == 1:
        return VectorIndex.open(folder, space, only=given.permitted)
    from adapt.index.sharded_index import ShardedIndex

    connect(given.config.resources)
    cores = max(1, int(totals()["CPU"]))
    return ShardedIndex.start(folder, cores, space, given.permitted, cpus=0, threads=max(1, cores // parts))


Union = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Sorted ids of documents, the best rank of each document (from 0), and the highest similarity of each document."""


class NearestNeighbours(Selection):
    """Takes the nearest documents of every target text, by embedding (kNN-TAPT).

    The selection searches the index once per text and reads the pool once. Memory holds all neighbours.
    """

    Options = NoOptions

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Requires the vectors of both pool and target."""
        return ("pool", "target")

    def learn(self, given: Given) -> None:
        """Opens the index of the pool and reads the target's vectors."""
        self._near, self._target = NearestDocuments(given), target_rows(given)

    def look_for(self, room: Room, per_text: int | None) -> Offer:
        """Searches as many neighbours of each target text as the budget needs.

        Raises:
            DataError: the pool is smaller than the number of neighbours.
        """
        near, rows = self._near, self._target.rows
        wanted = wanted_documents(room)
        self.k = per_text or min(max(1, ceil(wanted / len(rows))), near.documents)
        self._union = union_of(near.search(rows, self.k))
        while per_text is None and len(self._union[0]) < wanted and self.k < near.documents:
            self.k = min(2 * self.k, near.documents)
            self._union = union_of(near.search(rows, self.k))
        self._by_rank = per_text is None
        if per_text:
            return "enough"
        return "more" if self.k < near.documents else "all"

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields each document's similarity.

        Twice the rank (from 0) is subtracted, unless the budget is set per text.
        """
        ids, ranks, similar = self._union
        return scores_by_id(pool, ids, similar - 2.0 * ranks if self._by_rank else similar, NEVER)

    def documents_found(self) -> int:
        """Returns the number of documents that are neighbours of a target text."""
        return len(self._union[0])

    def figures(self) -> dict[str, float]:
        """Returns metrics of the search.

        The metrics are the number of neighbours per text, the size of their union, the index's recall, and the number
        of texts without a vector.
        """
        known = {"neighbours": self.k, "union": len(self._union[0]), "recall": self._near.recall}
        return {**known, "texts_without_vector": self._target.unknown}


def union_of(found: Iterable[Nearest]) -> Union:
    """Returns the documents that are neighbours of at least one text, with their ranks and similarities."""
    union: Union = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    for distances, some in found:
        hits = np.nonzero(some != NOBODY)
        joined = zip(union, (some[hits], hits[1], 1.0 - distances[hits]), strict=True)
        ids, ranks, similar = (np.concatenate(pair) for pair in joined)
        order = np.argsort(ids, kind="stable")
        known, starts = np.unique(ids[order], return_index=True)
        if len(known):
            union = known, np.minimum.reduceat(ranks[order], starts), np.maximum.reduceat(similar[order], starts)
    return union
