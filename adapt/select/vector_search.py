"""What selections by vectors share: search for the documents near given vectors, and scores by document id."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adapt.index.exact_search import Nearest
from adapt.index.index_files import IndexFacts, centre_in
from adapt.index.parts import centred
from adapt.index.vector_index import Searchable, ShardedIndex, VectorIndex, Width, width_for
from adapt.ray.runtime import connect
from adapt.select.selection import Given, Room
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from adapt.select.pool import Document


CHARACTERS = 200
"""Documents have so many characters, at least on average; where they have fewer, more are looked for."""
QUERIES_AT_ONCE = 4096
DOCUMENTS_AT_ONCE = 4096


class Nearby:
    """The documents that may be taken, as they are asked for by their nearness to some vectors.

    Args:
        given: has the vectors, and says which documents may be taken.

    Raises:
        DataError: no document may be taken, or the vectors of pool and target are not of one embedder.
    """

    def __init__(self, given: Given) -> None:
        self.documents = documents_of(given)
        self._index = _opened(given)
        self._min_recall = given.config.select.min_recall
        self._widths: dict[int, Width] = {}
        """By number of neighbours, measured on the rows that were asked for first."""

    def __getstate__(self) -> dict[str, Any]:
        """Goes to the processes that score without its index, which they do not search."""
        return {**vars(self), "_index": None}

    @property
    def recall(self) -> float:
        """The least share of the true neighbours that a search has found, measured on a sample."""
        return min((width.recall for width in self._widths.values()), default=1.0)

    def search(self, rows: np.ndarray, k: int) -> Iterator[Nearest]:
        """The k nearest documents of each row, for some rows at a time.

        Args:
            rows: vectors of any length [n, d].
            k: how many.

        Raises:
            DataError: there are fewer documents, or the index finds too few of the nearest ones.
        """
        check_enough(k, self.documents)
        if k not in self._widths:
            self._widths[k] = width_for(self._index, rows, k, self._min_recall)
        width = self._widths[k]
        for start in range(0, len(rows), QUERIES_AT_ONCE):
            yield self._index.search(rows[start : start + QUERIES_AT_ONCE], k, width.width)


def wanted_documents(room: Room) -> int:
    """How many documents to look for, so that they fill a room."""
    return room.documents if room.documents is not None else ceil((room.characters or 0) / CHARACTERS)


def documents_of(given: Given) -> int:
    """How many documents of the pool have vectors and may be taken.

    Raises:
        DataError: none.
    """
    assert given.vectors is not None, "Selection.vectors names what is read"
    count = IndexFacts.load(given.vectors.pool).vectors if given.permitted is None else len(given.permitted)
    if not count:
        raise DataError("no document is left to choose from", "let the selections before this one pass on more")
    return count


def check_enough(k: int, documents: int) -> None:
    """Refuses to look for more neighbours of a text than there are documents.

    Raises:
        DataError: there are fewer.
    """
    if k > documents:
        raise DataError(
            f"{k} neighbours of each text are wanted, and the pool has {documents} documents",
            "lower the budget (select.per_example; in a list of selections also select.keep), or give a larger pool",
        )


class TargetRows(NamedTuple):
    """The vectors of a target."""

    rows: np.ndarray
    """Those that are not 0, in the order of the texts [n, d]."""
    unknown: int
    """Texts whose vector is 0: the embedder knows nothing of them, so they have no neighbours."""


def target_rows(given: Given) -> TargetRows:
    """Reads them.

    Raises:
        DataError: all are 0.
    """
    from adapt.embed.vector_files import stored_vectors

    assert given.vectors is not None
    assert given.vectors.target is not None, "Selection.vectors names what is read"
    rows = np.concatenate([vectors for _, vectors in stored_vectors(given.vectors.target)])
    known = rows.any(1)
    if (centre := centre_in(given.vectors.pool)) is not None:
        rows = centred(rows, centre)
    if not known.any():
        what = f"the embedder {given.config.select.embedder} knows nothing of the {len(rows)} texts of the target"
        raise DataError(what, "choose another select.embedder, or check the texts of the target")
    return TargetRows(rows[known], int((~known).sum()))


def scores_by_id(pool: "Iterable[Document]", ids: np.ndarray, scores: np.ndarray, others: float) -> Iterator[float]:
    """The score of each document of a pool.

    Args:
        pool: documents, which have ids.
        ids: of those with a score of their own, sorted, at least one, int64 [n].
        scores: theirs, float64 [n].
        others: that of all others.
    """

    def known(wanted: np.ndarray) -> np.ndarray:
        places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[places] == wanted, scores[places], others)

    return each_by_id(pool, known)


def are_among(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Whether each of some ids is one of many others, which are sorted, bool [n]."""
    places = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
    found: np.ndarray = ids[places] == wanted if len(ids) else np.zeros(len(wanted), bool)
    return found


def each_by_id(pool: "Iterable[Document]", function: Callable[[np.ndarray], np.ndarray]) -> Iterator[float]:
    """What a function says of the ids of a pool's documents, of some at a time."""
    documents = iter(pool)
    while some := [document.id for document in islice(documents, DOCUMENTS_AT_ONCE)]:
        yield from function(np.array(some, np.int64)).tolist()


def _opened(given: Given) -> Searchable:
    """The index, in this process; where it has several parts, in as many of the cluster as there are cores for."""
    assert given.vectors is not None
    folder, space = given.vectors.pool, given.vectors.space
    parts = len(IndexFacts.load(folder).parts)
    if parts == 1:
        return VectorIndex.open(folder, space, only=given.permitted)
    import ray

    connect(given.config.resources)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return ShardedIndex.start(folder, cpus, space, given.permitted, cpus=0, threads=max(1, cpus // parts))
