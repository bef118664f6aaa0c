"""TSDS: documents in proportion to the mass that optimal transport gives them (arXiv 2410.11303, KNN-KDE).

Distances are those of vectors of length 1, sqrt(2 - 2 cos). The density of a document is that of the pool around it,

    rho = sum max(0, 1 - distance^2 / sigma^2)

over its nearest documents, itself included: 1 where it has no near copy. Documents are drawn without replacement in
proportion to their mass (Gumbel top-k). A budget that asks for more documents than have mass raises the level at which
mass is passed on to farther ones (`adapt.select.vectors.transport`), as a smaller alpha would.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapt.config import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.index.merge import NOBODY
from adapt.index.search import rows_by_id
from adapt.select.base import NEVER, Given, Offer, Room, Selection, VectorsOf
from adapt.select.random import draws_at
from adapt.select.vectors.nearby import Nearby, scores_by_id, target_rows, wanted_documents
from adapt.select.vectors.transport import Surroundings, best_level, level_of_support

if TYPE_CHECKING:
    from adapt.select.pool import Document

NOISE = 5
"""The stream of the draw."""
FIRST_NEIGHBOURS = 64
"""So many neighbours of a text are looked at, and more where these do not reach: to look at all changes nothing."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class TsdsOptions:
    """How mass is given. Defaults are the paper's."""

    alpha: Fraction = 0.6
    """Weight of nearness to the target; 1 - alpha is that of diversity."""
    scale: PositiveFloat = 5.0
    """Distances are divided by this (C)."""
    sigma: NonNegativeFloat = 0.75
    """Documents at a smaller distance than this share mass; 0: none do."""
    neighbours: PositiveInt = 5000
    """Most documents that get mass of one text."""
    density_neighbours: PositiveInt = 1000
    """Most documents that the density of one is made of."""


class TransportMass(Selection):
    """A search for each text and for each document that gets mass, and one pass over the pool."""

    Options = TsdsOptions

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Those of both."""
        return ("pool", "target")

    def learn(self, given: Given) -> None:
        """Opens the index.

        Raises:
            DataError: as `Nearby` and `target_rows`.
        """
        self._near, self._target = Nearby(given), target_rows(given)
        assert given.vectors is not None
        self._folder = given.vectors.pool
        self._densities: tuple[np.ndarray, np.ndarray] = np.zeros(0, np.int64), np.zeros(0)

    def look_for(self, room: Room, per_text: int | None) -> Offer:
        """Finds the plan, with as many neighbours as it needs."""
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
        """Log mass with noise."""
        noise = -np.log(-np.log(draws_at(self._known, self.seed, NOISE)))
        return scores_by_id(pool, self._known, np.log(self._mass) + noise, NEVER)

    def figures(self) -> dict[str, float]:
        """The level, neighbours of a text that get mass, documents that do, their density, and recall of the index."""
        return {
            "level": self._level,
            "neighbours": self._reached,
            "documents_with_mass": len(self._known),
            "density": float(self._densities[1].mean()),
            "recall": self._near.recall,
            "texts_without_vector": self._target.unknown,
        }

    def _around(self, k: int) -> tuple[Surroundings, np.ndarray]:
        """The k nearest documents of each text, and their ids."""
        found = list(self._near.search(self._target.rows, k))
        nearness, ids = (np.concatenate([each[place] for each in found]) for place in (0, 1))
        self._learn_densities(np.unique(ids[ids != NOBODY]))
        known, densities = self._densities
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        shares = np.where(ids == NOBODY, 0.0, 1.0 / densities[places])
        return Surroundings(np.sqrt(2.0 * np.maximum(nearness, 0.0)), shares), ids

    def _learn_densities(self, ids: np.ndarray) -> None:
        """Adds those of documents that were not reached before."""
        known, densities = self._densities
        new = np.setdiff1d(ids, known, assume_unique=True)
        found = [self._density(new[start : start + ROWS_AT_ONCE]) for start in range(0, len(new), ROWS_AT_ONCE)]
        ids, densities = np.concatenate([known, new]), np.concatenate([densities, *found])
        order = np.argsort(ids)
        self._densities = ids[order], densities[order]

    def _density(self, ids: np.ndarray) -> np.ndarray:
        """The density around some documents."""
        if self.options.sigma == 0:
            return np.ones(len(ids))
        rows, most = rows_by_id(self._folder, ids), min(self.options.density_neighbours, self._near.documents)
        densities, open_, count = np.ones(len(ids)), np.arange(len(ids)), min(FIRST_NEIGHBOURS, most)
        while len(open_):
            found = np.concatenate([distances for distances, _ in self._near.search(rows[open_], count)])
            kernels = np.clip(1.0 - 2.0 * found / self.options.sigma**2, 0.0, 1.0)
            densities[open_] = np.maximum(kernels.sum(1), 1.0)  # one that knows no word is not even near itself
            open_ = open_[kernels[:, -1] > 0] if count < most else open_[:0]  # the others have nothing farther to add
            count = min(4 * count, most)
        return densities
