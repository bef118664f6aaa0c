"""A recipe against the baseline: the difference of their mean scores, its interval, and p.

The interval is a bootstrap over both sources of chance: test examples, the same for both sides (so the comparison is
paired), and each side's seeds. Its width is that of Student's t, with the degrees of freedom that the seeds leave.

p is the largest of three: two permutation tests, one for each source (see `adapt.statistics.permutation`), and the
share of the bootstrap that lies as far from its mean as the difference does from zero. The first two alone would not
do: seeds are exchanged on one fixed test set, which may be small, and examples with fixed models, which another seed
would change; where both sources are alike in size, each test sees half of the variance, and both reject up to 10% of
equal recipes. With one seed a side only examples are tested, without predictions only seeds. Seeds whose scores do not
vary are not tested: they are copies of one number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm

from adapt.statistics.bootstrap import by_examples_and_seeds, by_seeds, welch
from adapt.statistics.outcomes import Tested
from adapt.statistics.permutation import Null, examples_null, seeds_null
from adapt.statistics.power import Chance, detectable, doubt_of, quantile
from adapt.statistics.seeds import LEVEL, ROUNDING

SAMPLES = 2000


@dataclass(frozen=True)
class Comparison:
    """How much a recipe's mean score is above the baseline's, as a share and not in points."""

    difference: float
    low: float | None
    """95% interval; None where nothing can be resampled (one seed a side, no predictions), or nothing varies."""
    high: float | None
    error: float | None
    """Standard error; None where there is no interval."""
    p: float | None
    least_p: float | None
    """The smallest p that the tests can give with so many seeds."""
    over: tuple[str, ...]
    """What was resampled and exchanged: `examples`, `seeds`, or both."""
    draws: np.ndarray
    """Resampled differences [samples], for pooling; empty where there is no interval."""
    nulls: dict[str, tuple[Null, float]]
    """For `examples` and `seeds`: the null distribution if they are exchanged, and the observed difference it is
    compared with."""
    chances: tuple[Chance, ...] = ()
    """For each task, what makes the difference uncertain; empty if nobody asked for it."""
    is_constant: bool = False
    """Whether there are several seeds a side whose scores do not vary, so that they say nothing of chance."""

    @cached_property
    def detectable(self) -> float | None:
        """The smallest true difference that would have been found with probability 0.8, without correction.

        None where that is not known, or no difference would have been.
        """
        return detectable(self.chances) if self.chances and self.error is not None else None


def compare(recipe: Tested, baseline: Tested, samples: int = SAMPLES, seed: int = 0) -> Comparison:
    """Compares the two sides, by their predictions where both have them for the same examples, else by scores alone.

    Args:
        recipe: one side; `Tested.counts` must be of the same examples as the other's, in the same order.
        baseline: the other side.
        samples: resamples of the bootstrap and of the exchange of examples.
        seed: of all that is drawn.
    """
    rng = np.random.default_rng(seed)
    paired = bool(recipe.counts and baseline.counts)
    draws, chance = (by_examples_and_seeds if paired else by_seeds)(recipe, baseline, samples, rng)
    difference = float(recipe.scores.mean() - baseline.scores.mean())
    nulls = {"examples": examples_null(baseline, recipe, samples, rng)} if paired else {}
    if null := seeds_null(baseline.scores, recipe.scores, rng):
        nulls["seeds"] = null, difference
    return _comparison(difference, draws, nulls, None if paired else welch(recipe, baseline), (chance,))


def average_over_tasks(comparisons: Sequence[Comparison], seed: int = 0) -> Comparison:
    """The mean difference of one recipe over tasks.

    Tasks are independent given the models, so their resampled differences are averaged draw by draw, and so are those
    under the null hypotheses. Tasks themselves are not resampled: what is found holds for these tasks, and a handful is
    too few to speak for others.
    """
    rng = np.random.default_rng(seed)
    difference = float(np.mean([comparison.difference for comparison in comparisons]))
    known = all(len(comparison.draws) for comparison in comparisons)
    draws = np.mean([rng.permutation(comparison.draws) for comparison in comparisons], axis=0) if known else np.empty(0)
    shared = [name for name in ("examples", "seeds") if all(name in comparison.nulls for comparison in comparisons)]
    nulls = {name: _together([comparison.nulls[name] for comparison in comparisons], rng) for name in shared}
    return _comparison(
        difference, draws, nulls, None, tuple(chance for comparison in comparisons for chance in comparison.chances)
    )


def _wider(error: float, chances: Sequence[Chance]) -> float:
    """The quantile of Student's t divided by that of the normal distribution.

    The number of seeds gives the degrees of freedom.
    """
    doubt = sum(doubt_of(side.variance, side.seeds) for chance in chances for side in (chance.recipe, chance.baseline))
    return float(quantile(np.array(error), np.array(doubt / len(chances) ** 4)) / norm.ppf(1 - LEVEL / 2))


def _together(parts: Sequence[tuple[Null, float]], rng: np.random.Generator) -> tuple[Null, float]:
    observed = float(np.mean([difference for _, difference in parts]))
    if len(parts) == 1:
        return parts[0]
    size = max(SAMPLES, *(len(null.values) for null, _ in parts))
    return Null(np.mean([rng.choice(null.values, size) for null, _ in parts], axis=0), exact=False), observed


def _comparison(
    difference: float,
    draws: np.ndarray,
    nulls: dict[str, tuple[Null, float]],
    interval: tuple[float, float, float] | None,
    chances: tuple[Chance, ...],
) -> Comparison:
    tests, sides = list(nulls.values()), [side for chance in chances for side in (chance.recipe, chance.baseline)]
    spread = float(draws.std()) if len(draws) else 0.0
    if interval is None and spread > ROUNDING:
        wide = difference + _wider(spread, chances) * (draws - difference)
        low, high = np.quantile(wide, [LEVEL / 2, 1 - LEVEL / 2])
        interval = float(low), float(high), spread
        is_both = "examples" in nulls and any(side.varies for side in sides)
        tests += [(Null(wide - wide.mean(), exact=False), difference)] if is_both else []
    low, high, error = interval or (None, None, None)
    p = max((null.p(observed) for null, observed in tests), default=None)
    least = max((null.least for null, _ in tests), default=None)
    constant = min((side.seeds for side in sides), default=1) > 1 and not any(side.varies for side in sides)
    return Comparison(difference, low, high, error, p, least, tuple(nulls), draws, nulls, chances, constant)
