"""Describes scores over the seeds of a recipe, and the looks of a sequential study, which adds seeds in rounds.

A look is an interim analysis of the results so far.

`Margin` says which difference matters, and `spread` computes mean, standard deviation and interval. `SeedRounds` says
how many seeds there are at each look, and `Looked` contains the results of a look. The statistics of looks are in
`adapt.statistics.looks`, which loads scipy. This module does not load scipy, because plans load this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np
from annotated_types import Ge

LEVEL = 0.05
"""A difference with a p below this value is called significant."""
CONFIDENCE = 1 - LEVEL
ROUNDING = 1e-12
"""Scores and losses that differ by no more than this count as equal."""


@dataclass(frozen=True)
class Margin:
    """Equivalence margins: smaller differences count as equal."""

    points: Annotated[float, Ge(0)] = 1.0
    """Margin for differences of scores [points, which are hundredths]."""
    nats: Annotated[float, Ge(0)] = 0.02
    """Margin for differences of losses [nats per token]."""

    @property
    def share(self) -> float:
        """Returns the margin for differences of scores as a fraction."""
        return self.points / 100


MARGIN = Margin()
"""The default margin, which is used unless a chain file sets another margin."""


@dataclass(frozen=True)
class Spread:
    """The mean and the spread of a score over seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation (n - 1). None for one seed."""
    low: float | None
    """Lower end of the 95% interval of the mean by Student's t; None for one seed, or if all scores are equal up to
    rounding."""
    high: float | None
    seeds: int


def spread(scores: Sequence[float] | np.ndarray) -> Spread:
    """Computes the mean, sample standard deviation and 95% t interval of at least one score [seeds]."""
    from scipy.stats import t

    n, mean = len(scores), float(np.mean(scores))
    if n < 2:
        return Spread(mean, None, None, None, n)
    deviation = float(np.std(scores, ddof=1))
    if deviation <= ROUNDING:  # returns no interval, because an interval of width 0 would claim certainty
        return Spread(mean, 0.0, None, None, n)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / n**0.5
    return Spread(mean, deviation, mean - half, mean + half, n)


Spending: TypeAlias = Literal["obrien_fleming", "pocock"]
"""How much of the error rate each look may use (`adapt.statistics.looks`)."""
Conclusion: TypeAlias = Literal["better", "worse", "equal", "open"]
"""How a comparison has ended: the recipe is better or worse than the baseline, equal up to a difference that does not
matter, or the comparison is undecided."""


@dataclass(frozen=True)
class SeedRounds:
    """The section `sequential` of a chain file: when a sequential study looks at its results."""

    first_seeds: Annotated[int, Ge(2)] = 5
    """Number of seeds per recipe at the first look (at least 2)."""
    round_seeds: Annotated[int, Ge(1)] = 5
    """Number of seeds that each further round adds to the recipes whose comparison is open (at least 1)."""
    max_seeds: Annotated[int, Ge(2)] = 20
    """Maximum number of seeds per recipe, at the last look (at least `first_seeds`)."""
    spending: Spending = "obrien_fleming"
    """Share of the error rate that each look uses: `obrien_fleming` uses little at early looks, so that the last look
    is nearly as strict as a test without looks; `pocock` ends large differences earlier and is stricter at the end."""
    figures: list[str] = field(default_factory=lambda: ["average"])
    """Metrics of sequences that are compared at each look, such as `average`, `loss_average` or `general_change`. The
    study adds seeds while a comparison is open. Fine-tuning runs have one metric, the score of the task."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Number of seeds per recipe at each look. The last round is shorter if a full one would exceed `max_seeds`."""
        return (*range(self.first_seeds, self.max_seeds, self.round_seeds), self.max_seeds)


@dataclass(frozen=True)
class Seen:
    """Result of one look for one recipe. Differences are from the baseline, in the unit of the metric."""

    difference: float
    low: float | None
    """Lower end of the repeated 95% interval. None if the interval is unknown."""
    high: float | None
    error: float | None
    """Standard error of the difference. None if nothing varies."""
    p: float | None
    """Two-sided p of this look, without any correction. None if nothing varies."""
    level: float
    """Largest p that is significant at this look, after Holm's correction for the recipes of the comparison."""
    conclusion: Conclusion
    """Conclusion of the look: `better`, `worse`, `equal`, or `open` (undecided)."""
    over: list[str] = field(default_factory=list)
    """Sources of chance that the tests include: `examples`, `seeds`, or both."""
    fixed: float = 0.0
    """Part of the standard error that more seeds do not reduce, because the test examples stay the same."""
    pairs: int = 0
    """Number of pairs of seeds of a paired comparison; 0 for other comparisons."""
    floor: float = 0.0
    """Smallest p that the permutation test of examples can give, with any number of seeds:
    1 / (number of permutations + 1). It is 0 if predictions are not known."""

    @property
    def is_known(self) -> bool:
        """Whether the difference has a standard error, which a forecast needs."""
        return self.error is not None and self.error > ROUNDING


@dataclass(frozen=True)
class Looked:
    """Result of a look at the recipes that are compared on one task, or in one metric of sequences."""

    row: str
    """Name of the task with its swept values, or title of the metric."""
    figure: str
    """Name of the metric of sequences. Empty for scores of fine-tuning runs."""
    look: int
    """Number of the look, from 1."""
    seeds: list[int]
    """Number of seeds per recipe at each planned look."""
    level: float
    """Level of this look for a single comparison. The repeated intervals have the confidence 1 - level."""
    margin: float
    """Equivalence margin: smaller differences count as equal. In the unit of the metric."""
    recipes: int
    """Number of recipes that are compared with the baseline, for which p is corrected."""
    significant: int
    """Number of recipes that are better or worse than the baseline, at this look or an earlier look."""
    equal: int
    """Number of recipes without a difference that matters, at this look or an earlier look."""
    spending: str
    found: dict[str, Seen]
    """Result of the look for each recipe, keyed by recipe, without recipes whose comparison ended earlier."""

    @property
    def open(self) -> list[str]:
        """Names of the recipes whose comparison has not ended."""
        return [recipe for recipe, seen in self.found.items() if seen.conclusion == "open"]


@dataclass(frozen=True)
class Ending:
    """The latest look at one recipe: the look at which its comparison ended, or the last look so far."""

    seen: Seen
    looked: Looked

    @property
    def seeds(self) -> int:
        """Number of seeds per side at this look."""
        return self.looked.seeds[self.looked.look - 1]

    @property
    def is_last(self) -> bool:
        """Whether no further look is planned."""
        return self.looked.look == len(self.looked.seeds)


def endings(looks: Sequence[Looked]) -> dict[tuple[str, str, str], Ending]:
    """Returns the latest look at each recipe, keyed by row, metric and recipe.

    Args:
        looks: all looks of a study, with earlier looks first.
    """
    return {
        (looked.row, looked.figure, recipe): Ending(seen, looked)
        for looked in looks
        for recipe, seen in looked.found.items()
    }
