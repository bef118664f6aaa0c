"""Selection `semdedup` (SemDeDup): keeps one of several documents with nearly equal vectors (arXiv 2303.09540).

The vectors are clustered by k-means (Abbas et al. 2023). The documents of a cluster are visited in the order of the
pool, and a document is dropped if its cosine similarity to a kept document of the cluster is above 1 - eps. (The
published code also drops documents near a dropped document, so that chains of documents disappear although their ends
are not similar.) Copies in different clusters are not found.

Centres are learned from a sample, in one process. All later steps are exact, so neither the index parts nor the number
of workers change the result. Memory holds 12 bytes per vector, the ids, and the vectors of one cluster.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adapt.config import OpenFraction, PositiveInt
from adapt.embed.vector_files import over_tasks
from adapt.index.exact_search import VectorPart, faiss_library, unit_rows
from adapt.index.index_files import IndexFacts, Spread, one_after_another, rows_at
from adapt.ray.runtime import connect
from adapt.select.selection import NEVER, Given, Selection, VectorsOf, draws_at
from adapt.select.vector_search import are_among, documents_of, each_by_id

if TYPE_CHECKING:
    from adapt.select.pool import Document


WITHIN = 6
"""Number of the random stream (see `draws_at`) with which remaining documents are drawn if no other selection
follows."""


@dataclass(frozen=True)
class SemdedupOptions:
    """Options of the selection `semdedup`."""

    eps: OpenFraction = 0.05
    """Documents more similar than 1 - eps (cosine) count as copies. Different texts can reach 0.75."""
    clusters: PositiveInt | None = None
    """Number of clusters. null is the square root of the number of documents."""


class WithoutCopies(Selection):
    """Drops documents whose embedding nearly equals that of another document (SemDeDup, arXiv 2303.09540).

    The selection is a filter, meant to be followed by another selection. It reads the vectors twice before the
    documents of the pool are read.
    """

    Options = SemdedupOptions

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Requires the vectors of the pool."""
        return ("pool",)

    def packages(self) -> tuple[str, ...]:
        """Returns the name faiss, because its version affects the centres of the clusters."""
        return ("faiss-cpu",)

    def is_filter(self) -> bool:
        """Returns True, because the selection only excludes documents."""
        return True

    def learn(self, given: Given) -> None:
        """Finds the copies, on the cluster if the vectors have several parts.

        Raises:
            DataError: there are no documents.
        """
        assert given.vectors is not None
        documents, folder = documents_of(given), given.vectors.pool
        clusters, spread = min(self.options.clusters or isqrt(documents), documents), one_after_another
        if len(IndexFacts.load(folder).parts) > 1:
            connect(given.config.resources)
            spread = over_tasks
        self._copies = copies_in(folder, clusters, 1.0 - self.options.eps, given.permitted, self.seed, spread)
        self._figures = {"documents": documents, "clusters": clusters, "copies": len(self._copies)}

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields random numbers for the remaining documents.

        If no other selection follows, the budget is therefore filled with random remaining documents.
        """
        return each_by_id(pool, self._drawn)

    def figures(self) -> dict[str, float]:
        """Returns the number of compared documents, of clusters, and of copies."""
        return self._figures

    def _drawn(self, ids: np.ndarray) -> np.ndarray:
        return np.where(are_among(ids, self._copies), NEVER, draws_at(ids, self.seed, WITHIN))


SAMPLED = 64
"""Number of vectors per cluster in the sample from which centres are learned. The sample is spread evenly over all
vectors."""
PASSES = 10
"""Number of k-means iterations over the sample."""
ROWS_AT_ONCE = 1024
TASKS = 64
"""Number of groups of clusters that are searched in parallel."""
NO_CLUSTER = -1


def copies_in(
    folder: Path,
    clusters: int,
    most: float,
    only: np.ndarray | None = None,
    seed: int = 0,
    spread: "Spread[np.ndarray]" = one_after_another,
) -> np.ndarray:
    """Returns the sorted ids of copies, int64. A copy is a vector that is too similar to a kept vector of its cluster.

    `most` is the largest allowed cosine similarity of two kept vectors. `only` has the sorted ids of the vectors to
    compare; None compares all. `spread` runs tasks over the parts, and over the groups of clusters.
    """
    parts = range(len(IndexFacts.load(folder).parts))
    ids = np.concatenate([VectorPart.open(folder, number).ids for number in parts])
    positions = np.arange(len(ids)) if only is None else np.flatnonzero(np.isin(ids, only))
    sample = positions[:: max(1, len(positions) // (SAMPLED * clusters))]
    centres = centres_of(rows_at(folder, sample).astype(np.float32), clusters, seed)
    labels = np.concatenate(spread(partial(_nearest_centres, folder, centres, only), parts))
    order = np.argsort(labels, kind="stable")  # sorts by cluster, and within a cluster in the order of the pool
    bounds = np.searchsorted(labels, np.arange(clusters + 1), sorter=order)
    shares = np.array_split(np.arange(clusters), min(TASKS, clusters))
    look = FindCopies(folder, order, bounds, shares, most)
    return np.sort(ids[np.concatenate(spread(look, range(len(shares))))])


def centres_of(sample: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Returns centres of length 1 by spherical k-means, float16 [clusters, d].

    Args:
        sample: vectors of length 1, float32 [n, d], at least as many as clusters.
        clusters: number of clusters.
        seed: seed of the first centres.
    """
    means = faiss_library().Kmeans(
        sample.shape[1],
        clusters,
        niter=PASSES,
        seed=seed % 2**31,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=len(sample),
    )
    means.train(sample)
    return unit_rows(np.asarray(means.centroids))


def _nearest_centres(folder: Path, centres: np.ndarray, only: np.ndarray | None, number: int) -> np.ndarray:
    """Returns the index of the nearest centre of each vector of a part, int32 [vectors].

    If several centres are equally near, it is the first of them. Vectors that are not compared have NO_CLUSTER.
    """
    part, transposed = VectorPart.open(folder, number), centres.astype(np.float64).T
    labels = np.full(len(part.ids), NO_CLUSTER, np.int32)
    places = np.arange(len(part.ids)) if only is None else part.positions_of(only)
    for start in range(0, len(places), ROWS_AT_ONCE):
        some = places[start : start + ROWS_AT_ONCE]
        labels[some] = (part.rows[some].astype(np.float64) @ transposed).argmax(1)
    return labels


@dataclass(frozen=True)
class FindCopies:
    """Finds the copies among the documents in one group of clusters."""

    folder: Path
    order: np.ndarray
    """Positions of the vectors, counted over all parts of the index, sorted by cluster."""
    bounds: np.ndarray
    """Start of each cluster in `order`, and the end of the last cluster."""
    shares: Sequence[np.ndarray]
    """Numbers of the clusters that each group contains."""
    most: float

    def __call__(self, number: int) -> np.ndarray:
        """Returns the positions of the copies that were found, int64."""
        found = [np.zeros(0, np.int64)]
        for cluster in self.shares[number]:
            positions = self.order[self.bounds[cluster] : self.bounds[cluster + 1]]
            found.append(positions[~kept_vectors(rows_at(self.folder, positions), self.most)])
        return np.concatenate(found)


def kept_vectors(rows: np.ndarray, most: float) -> np.ndarray:
    """Returns whether each vector is kept, bool [n].

    A vector is kept if it is not too similar to an earlier kept vector.

    Args:
      rows: vectors of length 1, float16 [n, d].
      most: largest cosine similarity of two kept vectors.
    """
    stays = np.zeros(len(rows), bool)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows[start : start + ROWS_AT_ONCE].astype(np.float64)
        is_copy = np.zeros(len(block), bool)
        for before in range(0, start, ROWS_AT_ONCE):
            others = rows[before : before + ROWS_AT_ONCE][stays[before : before + ROWS_AT_ONCE]].astype(np.float64)
            is_copy |= (block @ others.T > most).any(1)
        alike = block @ block.T > most
        for place in range(len(block)):
            if not is_copy[place]:
                stays[start + place] = True
                is_copy[place + 1 :] |= alike[place, place + 1 :]
    return stays
