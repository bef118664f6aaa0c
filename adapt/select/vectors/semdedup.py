"""SemDeDup: of documents whose vectors nearly agree one is left (Abbas et al. 2023, arXiv 2303.09540).

The vectors fall into clusters by k-means; inside a cluster, in the order of the pool, a document is dropped whose
cosine similarity to one that stays is above 1 - eps. (The published code also drops what is near to a dropped one, by
which chains of documents disappear whose ends are not alike.) Copies in two clusters are not found.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from adapt.config import OpenFraction, PositiveInt
from adapt.index.build import IndexFacts, one_after_another
from adapt.select.base import NEVER, Given, Selection, VectorsOf
from adapt.select.random import draws_at
from adapt.select.vectors.copies import copies_in
from adapt.select.vectors.nearby import are_among, documents_of, each_by_id

if TYPE_CHECKING:
    from adapt.select.pool import Document

WITHIN = 6
"""The stream that draws the documents which are taken of those that stay, where no other selection follows."""


@dataclass(frozen=True)
class SemdedupOptions:
    """Which documents count as copies."""

    eps: OpenFraction = 0.05
    """Documents are copies above a cosine similarity of 1 - eps. Texts that say something else may well be at .75."""
    clusters: PositiveInt | None = None
    """Clusters; null is the square root of the number of documents."""


class WithoutCopies(Selection):
    """A filter: the vectors are read twice, before the pass over the pool."""

    Options = SemdedupOptions

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Those of the pool."""
        return ("pool",)

    def packages(self) -> tuple[str, ...]:
        """Who finds the centres."""
        return ("faiss-cpu",)

    def is_filter(self) -> bool:
        """It is one."""
        return True

    def learn(self, given: Given) -> None:
        """Finds the copies; where the vectors have several parts, on the cluster.

        Raises:
            DataError: there is no document.
        """
        assert given.vectors is not None
        documents, folder = documents_of(given), given.vectors.pool
        clusters, spread = min(self.options.clusters or isqrt(documents), documents), one_after_another
        if len(IndexFacts.load(folder).parts) > 1:
            from adapt.embed.indexed import over_tasks
            from adapt.ray.runtime import connect

            connect(given.config.resources)
            spread = over_tasks
        self._copies = copies_in(folder, clusters, 1.0 - self.options.eps, given.permitted, self.seed, spread)
        self._figures = {"documents": documents, "clusters": clusters, "copies": len(self._copies)}

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Random numbers, so that alone it takes some of those that stay."""
        return each_by_id(pool, self._drawn)

    def figures(self) -> dict[str, float]:
        """Documents that were compared, clusters, and copies."""
        return self._figures

    def _drawn(self, ids: np.ndarray) -> np.ndarray:
        return np.where(are_among(ids, self._copies), NEVER, draws_at(ids, self.seed, WITHIN))
