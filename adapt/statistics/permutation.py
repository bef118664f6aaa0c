"""Computes how often shuffled results of two recipes differ as much as the observed results (permutation tests).

There are two null hypotheses, each with its own way of shuffling:

- *seeds*: it does not matter which recipe a seed's score belongs to. All arrangements of the scores over the two sides
  are tried (252 for 5 seeds per side), so p is exact. If the scores of one side are all equal, they count as one
  number. The signs of the other side's distances from this number are then flipped instead (32 arrangements for 5
  seeds). If this holds for both sides, there is no such test.
- *examples*: for these trained models, it does not matter which recipe a prediction belongs to. The predictions of the
  two sides are swapped example by example, with probability one half (approximate randomization: Noreen 1989; Yeh
  2000). All seeds are swapped together, because their predictions for one example are similar.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb

import numpy as np

from adapt.statistics.outcomes import CELLS, Tested, total
from adapt.statistics.seeds import ROUNDING

MOST_ARRANGEMENTS = 20_000
"""Largest number of arrangements of seeds to try. If there are more, this many are drawn at random."""


@dataclass(frozen=True)
class NullDistribution:
    """The distribution of the difference of mean scores if the two sides are equally good."""

    values: np.ndarray
    exact: bool
    """Whether `values` are all possible differences, which include the observed difference. Otherwise `values` are a
    random sample, and the observed difference is not among them."""

    def p(self, observed: float) -> float:
        """Returns the two-sided p-value of an observed difference.

        If `values` are a sample, the observed difference is counted as one further value (Phipson and Smyth 2010).
        """
        as_large = float(np.sum(np.abs(self.values) >= abs(observed) - ROUNDING))
        return as_large / len(self.values) if self.exact else (as_large + 1) / (len(self.values) + 1)

    @property
    def least(self) -> float:
        """The smallest p that this distribution can give."""
        return self.p(float(np.abs(self.values).max())) if self.exact else 1 / (len(self.values) + 1)


def seeds_null(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> NullDistribution | None:
    """Computes the mean of b's seeds minus the mean of a's, for every arrangement of the scores over the sides.

    Args:
        a: scores [seeds].
        b: scores [seeds]; the number of seeds may differ.
        rng: draws arrangements if there are more than MOST_ARRANGEMENTS.

    Returns:
        The distribution; None if nothing can be permuted, because a side has only one seed or no scores differ.
    """
    if min(len(a), len(b)) < 2 or not (vary(a) or vary(b)):
        return None
    weights, exact = arrangements(len(a), len(b), MOST_ARRANGEMENTS, rng, (vary(a), vary(b)))
    return NullDistribution(weights @ np.concatenate([a, b]), exact)


def vary(scores: Sequence[float] | np.ndarray) -> bool:
    """Returns whether scores differ by more than rounding."""
    return float(np.ptp(scores)) > ROUNDING


def arrangements(
    a: int, b: int, most: int, rng: np.random.Generator, varying: tuple[bool, bool] = (True, True)
) -> tuple[np.ndarray, bool]:
    """Returns one weight per score for every arrangement of the scores over the two sides.

    The weighted sum of the scores is the mean of side b minus the mean of side a.

    Args:
        a: number of seeds of the first side, whose scores come first.
        b: number of seeds of the second side.
        most: largest number of arrangements. If there are more, this many are drawn at random.
        rng: draws the arrangements.
        varying: whether the scores of a vary, and whether those of b vary. If one side's scores are equal, arrangements
            flip the signs of the other side's distances from them.

    Returns:
        Weights [arrangements, a + b], and whether these are all possible arrangements.
    """
    if not all(varying):
        side = slice(None, a) if varying[0] else slice(a, None)
        flipped, exact = signs(a if varying[0] else b, most, rng)
        weights = np.empty((len(flipped), a + b))
        weights[:] = -flipped.mean(1, keepdims=True) / (b if varying[0] else a)
        weights[:, side] = flipped / flipped.shape[1]
        return (-weights if varying[0] else weights), exact
    exact = comb(a + b, b) <= most
    if exact:
        chosen = np.array(list(combinations(range(a + b), b)))
    else:
        chosen = rng.permuted(np.tile(np.arange(a + b), (most, 1)), axis=1)[:, :b]
    weights = np.full((len(chosen), a + b), -1 / a)
    np.put_along_axis(weights, chosen, 1 / b, axis=1)
    return weights, exact


def signs(count: int, most: int, rng: np.random.Generator) -> tuple[np.ndarray, bool]:
    """Returns all assignments of a sign, +1 or -1, to each of `count` numbers.

    If there are too many assignments, random ones are returned, each together with its opposite.

    Args:
        count: number of signs in an assignment.
        most: largest number of assignments. If there are more, this many are drawn at random.
        rng: draws the assignments.

    Returns:
        Signs [assignments, count], and whether these are all possible assignments.
    """
    if 2**count > most:
        drawn = rng.choice([-1.0, 1.0], (most // 2, count))
        return np.concatenate([drawn, -drawn]), False
    return np.array(list(product([1.0, -1.0], repeat=count))), True


def examples_null(a: Tested, b: Tested, samples: int, rng: np.random.Generator) -> tuple[NullDistribution, float]:
    """Computes the difference b - a with predictions swapped at random by example, `samples` times.

    Seeds are paired in order. If one side has more seeds, its last ones are left out of this test.

    Returns:
        The null distribution, and the observed difference of the paired seeds.
    """
    assert a.score is not None
    assert b.score is not None
    pairs = list(zip(a.counts, b.counts, strict=False))
    gaps = [(after - before).tocsr() for before, after in pairs]
    differing = np.unique(np.concatenate([gap.nonzero()[0] for gap in gaps]))  # swaps of other examples have no effect
    values = []
    for size in _portions(samples, len(differing)):
        swapped = rng.integers(0, 2, (size, len(differing))).astype(np.float64)
        drawn = np.zeros(size)
        for (before, after), gap in zip(pairs, gaps, strict=True):
            moved = total(swapped, gap[differing])
            drawn += b.score(after.sum(axis=0) - moved) - a.score(before.sum(axis=0) + moved)
        values.append(drawn / len(pairs))
    n = len(pairs)
    return NullDistribution(np.concatenate(values), exact=False), float(b.scores[:n].mean() - a.scores[:n].mean())


def _portions(samples: int, examples: int) -> list[int]:
    size = max(1, CELLS // max(examples, 1))
    return [min(size, samples - done) for done in range(0, samples, size)]
