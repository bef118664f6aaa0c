"""Selection `knn`: takes the nearest documents of each target text (kNN-TAPT; Don't Stop Pretraining, section 5.3).

With `select.per_example: k`, the k nearest documents (by cosine) of each target text are selected. Fewer documents are
selected if texts share neighbours. A document's score is its highest similarity to a text whose neighbour it is.

With another budget, or before another selection, k is the smallest number that fills the budget. Documents that are the
nearest neighbour of some text come first, then the second nearest neighbours, and so on, so that every text has its
share. Documents of the same rank are ordered by similarity. The score is similarity - 2 x (rank - 1), where the rank is
the best that the document has for any text. Similarities are from -1 to 1, so documents of different ranks do not mix,
and searching more neighbours than needed does not change the selection.
"""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from adapt.index.exact_search import NOBODY, Nearest
from adapt.select.selection import NEVER, Given, NoOptions, Offer, Room, Selection, VectorsOf
from adapt.select.vector_search import NearestDocuments, scores_by_id, target_rows, wanted_documents

if TYPE_CHECKING:
    from adapt.select.pool import Document

Union = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Sorted ids of documents, the best rank of each document (from 0), and its highest similarity."""


class NearestNeighbours(Selection):
    """Takes the nearest documents of every target text, by embedding (kNN-TAPT).

    It searches the index once per text and reads the pool once. All neighbours are held in memory.
    """

    Options = NoOptions

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Requires the vectors of both pool and target."""
        return ("pool", "target")

    def learn(self, given: Given) -> None:
        """Opens the index of the pool and reads the target's vectors.

        Raises:
            DataError: for the reasons given at `NearestDocuments` and `target_rows`.
        """
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
        """Yields each document's similarity, minus twice its rank (from 0) unless the budget is per text."""
        ids, ranks, similar = self._union
        return scores_by_id(pool, ids, similar - 2.0 * ranks if self._by_rank else similar, NEVER)

    def figures(self) -> dict[str, float]:
        """Returns metrics of the search.

        They are the number of neighbours per text, the size of their union, the index's recall, and the number of texts
        without a vector.
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
