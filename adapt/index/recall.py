"""What share of the nearest vectors an index finds, and how widely it has to search for that."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adapt.errors import DataError
from adapt.index.build import IndexFacts
from adapt.index.merge import Nearest
from adapt.index.propose import FIRST_WIDTH, widest

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
        """See `adapt.index.search`."""

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """See `adapt.index.search`."""


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
