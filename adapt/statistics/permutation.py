"""Permutation tests: how often a difference as large comes of labels that mean nothing.

Two null hypotheses, each with its own exchange:

- *seeds*: which recipe a seed's score belongs to does not matter. All arrangements of the scores over the two sides
  are counted (5 seeds a side: 252), so p is exact. Copies of one score are no evidence: where one side's seeds do not
  vary, the signs of the other's distances from it are flipped instead (5 seeds: 32 arrangements); where no side's seeds
  vary, there is no such test.
- *examples*: for these trained models, which recipe a prediction belongs to does not matter. The two sides' predictions
  are exchanged example by example, with probability one half (approximate randomization: Noreen 1989; Yeh 2000),
  for all seeds together, since their predictions of one example are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb

import numpy as np

from adapt.statistics.outcomes import CELLS, Tested, total
from adapt.statistics.seeds import ROUNDING

MOST_ARRANGEMENTS = 20_000
"""If there are more arrangements of seeds than this, as many are drawn at random."""


@dataclass(frozen=True)
class Null:
    """The differences of mean scores that chance alone gives, if the two sides are alike."""

    values: np.ndarray
    exact: bool
    """Whether these are all differences that there are, with the observed one among them. Otherwise they are a sample
    without it."""

    def p(self, observed: float) -> float:
        """Two-sided p; a sample counts the observed difference as one more draw (Phipson and Smyth 2010)."""
        as_large = float(np.sum(np.abs(self.values) >= abs(observed) - ROUNDING))
        return as_large / len(self.values) if self.exact else (as_large + 1) / (len(self.values) + 1)

    @property
    def least(self) -> float:
        """The smallest p that this distribution can give."""
        return self.p(float(np.abs(self.values).max())) if self.exact else 1 / (len(self.values) + 1)


def seeds_null(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> Null | None:
    """Mean of b's seeds minus mean of a's under every arrangement of the scores over the sides.

    Args:
        a: scores [seeds].
        b: likewise; the numbers may differ.
        rng: for more than MOST_ARRANGEMENTS of them.

    Returns:
        None where there is nothing to exchange: one seed on either side, or no seed's score differs from another's.
    """
    if min(len(a), len(b)) < 2 or not (vary(a) or vary(b)):
        return None
    weights, exact = arrangements(len(a), len(b), MOST_ARRANGEMENTS, rng, (vary(a), vary(b)))
    return Null(weights @ np.concatenate([a, b]), exact)


def vary(scores: Sequence[float] | np.ndarray) -> bool:
    """Whether scores differ by more than rounding."""
    return float(np.ptp(scores)) > ROUNDING


def arrangements(
    a: int, b: int, most: int, rng: np.random.Generator, varying: tuple[bool, bool] = (True, True)
) -> tuple[np.ndarray, bool]:
    """What mean of b minus mean of a is of all scores, in every arrangement of them over the two sides.

    Args:
        a: number of its seeds, which come first.
        b: likewise.
        most: arrangements; if there are more, so many are drawn at random.
        rng: to draw with.
        varying: whether the scores of a, and those of b, differ from each other. Where one side's do not, its mean is
            fixed, and arrangements flip signs of the other side's distances from it.

    Returns:
        Weights [arrangements, a + b], and whether they are all there are.
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
    """All assignments of +1 and -1 to some numbers, or many drawn at random, each with its opposite.

    Args:
        count: of the numbers.
        most: assignments; if there are more, so many are drawn.
        rng: to draw with.

    Returns:
        Signs [assignments, count], and whether they are all there are.
    """
    if 2**count > most:
        drawn = rng.choice([-1.0, 1.0], (most // 2, count))
        return np.concatenate([drawn, -drawn]), False
    return np.array(list(product([1.0, -1.0], repeat=count))), True


def examples_null(a: Tested, b: Tested, samples: int, rng: np.random.Generator) -> tuple[Null, float]:
    """The difference b - a with predictions exchanged at random by example, `samples` times.

    Seeds are paired in order; where one side has more, the others are left out of this test.

    Returns:
        The null distribution, and the observed difference of the seeds it is made of.
    """
    assert a.score is not None
    assert b.score is not None
    pairs = list(zip(a.counts, b.counts, strict=False))
    gaps = [(after - before).tocsr() for before, after in pairs]
    differing = np.unique(np.concatenate([gap.nonzero()[0] for gap in gaps]))  # to exchange the others changes nothing
    values = []
    for size in _portions(samples, len(differing)):
        swapped = rng.integers(0, 2, (size, len(differing))).astype(np.float64)
        drawn = np.zeros(size)
        for (before, after), gap in zip(pairs, gaps, strict=True):
            moved = total(swapped, gap[differing])
            drawn += b.score(after.sum(axis=0) - moved) - a.score(before.sum(axis=0) + moved)
        values.append(drawn / len(pairs))
    n = len(pairs)
    return Null(np.concatenate(values), exact=False), float(b.scores[:n].mean() - a.scores[:n].mean())


def _portions(samples: int, examples: int) -> list[int]:
    size = max(1, CELLS // max(examples, 1))
    return [min(size, samples - done) for done in range(0, samples, size)]
