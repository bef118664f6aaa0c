"""Selection `tsds`: draws documents by their mass in an optimal transport plan (KNN-KDE, arXiv 2410.11303).

Distances are between vectors of length 1, sqrt(2 - 2 cos). The density at a document counts the pool's documents near
it, including itself:

    rho = sum max(0, 1 - distance^2 / sigma^2)

The density is 1 if the document has no near copies. Documents are drawn without replacement in proportion to their mass
(Gumbel top-k). For M texts and documents at distances d_ij, the plan g minimizes

    alpha / C sum_ij g_ij d_ij + (1 - alpha) M max_ij rho_j |g_ij - u_j|    where sum_j g_ij = 1 / M

and u_j = (1 / rho_j) / (M sum_k 1 / rho_k). The first term moves the mass of each text to near documents. The second
term spreads this mass in proportion to 1 / rho, so that near copies, whose density rho is high, share the mass that a
single document in their place would get.

If the maximum is 1 / (M level), the cheapest plan fills the nearest documents of each text up to their limit, 1 / (M
level rho_j), and gives the rest to the next document. When the level rises, the mean distance over which the mass of a
text is moved grows at the rate S / level^2 with

    S = sum_k (d_next - d_k) / rho_k    over the full documents k

and the second term falls at the rate (1 - alpha) / level^2. So the best level is the first at which the mean of S over
all texts reaches C (1 - alpha) / alpha. (The second term stops falling once the level passes half of sum_j 1 / rho_j,
far beyond the neighbours that are searched.) If the budget is larger than the number of documents with mass, the level
is raised, as a smaller alpha would do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapt.config import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.index.exact_search import NOBODY
from adapt.index.vector_index import rows_by_id
from adapt.select.selection import NEVER, Given, Offer, Room, Selection, VectorsOf, draws_at
from adapt.select.vector_search import NearestDocuments, scores_by_id, target_rows, wanted_documents

if TYPE_CHECKING:
    from adapt.select.pool import Document


@dataclass(frozen=True)
class Surroundings:
    """The nearest documents of each target text, the nearest first [texts, k]."""

    distances: np.ndarray
    """Distances of the documents in ascending order, float64 [texts, k]. Infinite where no document was found."""
    shares: np.ndarray
    """Reciprocal of the density around each document, float64 [texts, k]. 0 where no document was found."""

    @cached_property
    def reach(self) -> np.ndarray:
        """For each text and document, the level of the plan from which the document takes no more mass [texts, k]."""
        return np.cumsum(self.shares, axis=1)

    @cached_property
    def last(self) -> np.ndarray:
        """Index, among the k nearest documents, of the farthest document that was found for each text [texts]."""
        found: np.ndarray = np.isfinite(self.distances).sum(1) - 1
        return found

    @cached_property
    def levels(self) -> np.ndarray:
        """Levels of the transport plan from which some document can take no more mass, in ascending order."""
        return np.unique(self.reach[np.isfinite(self.distances)])

    def are_used_up(self, level: float) -> np.ndarray:
        """Returns, for each text, whether all its documents are full at a level and more are needed: bool [texts]."""
        used: np.ndarray = _at(self.reach, self.last) <= level
        return used

    def full(self, level: float) -> np.ndarray:
        """Returns, for each text, how many documents can take no more mass from it at a level [texts].

        The farthest document is not counted, because it takes the remaining mass.
        """
        full: np.ndarray = np.minimum((self.reach <= level).sum(1), self.last)
        return full

    def spent(self, level: float) -> float:
        """Returns sum_ik (d_next - d_k) / rho_k over the full documents, which rises with the level."""
        full = self.full(level)
        costs = np.cumsum(self.shares * np.where(np.isfinite(self.distances), self.distances, 0.0), axis=1)
        before = full > 0
        following = _at(self.distances, full) * _at(self.reach, full - 1) - _at(costs, full - 1)
        return float(following[before].sum())

    def masses(self, level: float) -> np.ndarray:
        """Returns the transport plan [texts, k]: the mass that each text gives to each document.

        A text gives 1 / texts in total.
        """
        texts, width = self.shares.shape
        full = self.full(level)[:, None]
        columns = np.arange(width)[None]
        given = np.where(columns < full, self.shares, 0.0) / level
        plan: np.ndarray = (given + (columns == full) * np.maximum(1.0 - given.sum(1, keepdims=True), 0.0)) / texts
        return plan


def best_level(around: Surroundings, alpha: float, scale: float) -> float:
    """Returns the level that minimizes the objective, at most the highest level of the found documents.

    `alpha` is the weight of distances against diversity, from 0 to 1. `scale` is the constant C, in the unit of
    distances.
    """
    texts, levels = len(around.shares), around.levels
    if alpha == 0:
        return float(levels[-1])
    wanted = texts * scale * (1.0 - alpha) / alpha
    place = _first(len(levels), lambda place: around.spent(float(levels[place])) >= wanted)
    return float(levels[min(place, len(levels) - 1)])


def level_of_support(around: Surroundings, ids: np.ndarray, count: int) -> float:
    """Returns the lowest level at which `count` different documents have mass, or all documents if there are fewer.

    Args:
        around: nearest documents of each text.
        ids: ids of these documents [texts, k].
        count: number of documents.
    """
    found = np.isfinite(around.distances)
    # level from which the text gives mass to the document
    enters = np.pad(around.reach[:, :-1], ((0, 0), (1, 0)))[found]
    order = np.lexsort((enters, ids[found]))
    _, first = np.unique(ids[found][order], return_index=True)
    entered = np.sort(enters[order][first])
    place = np.searchsorted(around.levels, entered[min(count, len(entered)) - 1], side="right")
    return float(around.levels[min(place, len(around.levels) - 1)])


def _at(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns one number per row of `table`: row i has the number in column `columns[i]`."""
    found: np.ndarray = np.take_along_axis(table, columns[:, None], axis=1)[:, 0]
    return found


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Returns the first index for which a monotone condition holds; `count` if it never holds."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


NOISE = 5
"""Number of the random stream (see `draws_at`) from which the Gumbel noise is drawn."""
FIRST_NEIGHBOURS = 64
"""Number of neighbours of each text that are searched first. If they are too few, more neighbours are searched, so this
number does not change the result."""
DENSITY_NEIGHBOURS = 1000
"""Maximum number of neighbours that are included in the density around a document."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class TsdsOptions:
    """Options of the selection `tsds`. The defaults are the values in the paper."""

    earlier: ClassVar[Mapping[str, Any]] = {"density_neighbours": DENSITY_NEIGHBOURS}
    alpha: Fraction = 0.6
    """Weight of nearness to the target; 1 - alpha is the weight of diversity."""
    scale: PositiveFloat = 5.0
    """Divisor of distances in the objective (C in the paper)."""
    sigma: NonNegativeFloat = 0.75
    """Distance below which documents count as near copies. Near copies share the mass of a single document. 0 turns
    this off."""
    neighbours: PositiveInt = 5000
    """Maximum number of documents that receive mass from one text."""


class TransportMass(Selection):
    """Spreads the selection over the whole target by optimal transport, without near copies (TSDS, arXiv 2410.11303).

    The selection searches the index for each text and for each document that receives mass. It reads the pool once.
    """

    Options = TsdsOptions

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Requires the vectors of both pool and target."""
        return ("pool", "target")

    def learn(self, given: Given) -> None:
        """Opens the index of the pool and reads the target's vectors."""
        self._near, self._target = NearestDocuments(given), target_rows(given)
        assert given.vectors is not None
        self._folder = given.vectors.pool
        self._densities: tuple[np.ndarray, np.ndarray] = np.zeros(0, np.int64), np.zeros(0)

    def look_for(self, room: Room, per_text: int | None) -> Offer:
        """Computes the transport plan. Searches more neighbours of each text until there are enough for the plan."""
        options, wanted = self.options, wanted_documents(room)
        most = min(options.neighbours, self._near.documents)
        k = min(FIRST_NEIGHBOURS, most)
        while True:
            around, ids = self._around(k)
            level = max(best_level(around, options.alpha, options.scale), level_of_support(around, ids, wanted))
            if k == most or not around.are_used_up(level).any():
                break
            k = min(4 * k, most)
        masses = around.masses(level)
        self._known, places = np.unique(ids[masses > 0], return_inverse=True)
        self._mass = np.bincount(places, masses[masses > 0])
        self._level, self._reached = level, float(around.full(level).mean() + 1)
        return "all" if k == most and wanted >= len(self._densities[0]) else "more"

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields the log mass of each document, with Gumbel noise."""
        noise = -np.log(-np.log(draws_at(self._known, self.seed, NOISE)))
        return scores_by_id(pool, self._known, np.log(self._mass) + noise, NEVER)

    def documents_found(self) -> int:
        """Returns the number of documents with mass."""
        return len(self._known)

    def figures(self) -> dict[str, float]:
        """Returns metrics of the transport plan.

        The metrics are the level, the mean number of neighbours used per text, the number of documents with mass, the
        mean density, the recall of the index, and the number of texts without a vector.
        """
        return {
            "level": self._level,
            "neighbours": self._reached,
            "documents_with_mass": len(self._known),
            "density": float(self._densities[1].mean()),
            "recall": self._near.recall,
            "texts_without_vector": self._target.unknown,
        }

    def _around(self, k: int) -> tuple[Surroundings, np.ndarray]:
        """Returns the k nearest documents of each text, and their ids."""
        found = list(self._near.search(self._target.rows, k))
        nearness, ids = (np.concatenate([part[column] for part in found]) for column in (0, 1))
        self._learn_densities(np.unique(ids[ids != NOBODY]))
        known, densities = self._densities
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        shares = np.where(ids == NOBODY, 0.0, 1.0 / densities[places])
        return Surroundings(np.sqrt(2.0 * np.maximum(nearness, 0.0)), shares), ids

    def _learn_densities(self, ids: np.ndarray) -> None:
        """Computes the densities around documents whose density is not known yet."""
        known, densities = self._densities
        new = np.setdiff1d(ids, known, assume_unique=True)
        found = [self._density(new[start : start + ROWS_AT_ONCE]) for start in range(0, len(new), ROWS_AT_ONCE)]
        ids, densities = np.concatenate([known, new]), np.concatenate([densities, *found])
        order = np.argsort(ids)
        self._densities = ids[order], densities[order]

    def _density(self, ids: np.ndarray) -> np.ndarray:
        """Returns the density of the pool around each document."""
        if self.options.sigma == 0:
            return np.ones(len(ids))
        rows, most = rows_by_id(self._folder, ids), min(DENSITY_NEIGHBOURS, self._near.documents)
        densities, open_, count = np.ones(len(ids)), np.arange(len(ids)), min(FIRST_NEIGHBOURS, most)
        while len(open_):
            found = np.concatenate([distances for distances, _ in self._near.search(rows[open_], count)])
            kernels = np.clip(1.0 - 2.0 * found / self.options.sigma**2, 0.0, 1.0)
            densities[open_] = np.maximum(kernels.sum(1), 1.0)  # a density is at least 1, even if the vector is 0
            # searches more neighbours of documents whose farthest neighbour still counts; other densities are complete
            open_ = open_[kernels[:, -1] > 0] if count < most else open_[:0]
            count = min(4 * count, most)
        return densities
