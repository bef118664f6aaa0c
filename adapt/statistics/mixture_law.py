"""The D-CPT law (arXiv 2406.01375): loss on a text by tokens trained on and by the share that such text has of them.

L(D, r) = E + B r^eta / D^b + C / (r + eps)^g, for models of one size (the paper's term A / N^a is then part of E).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import least_squares, nnls

FEWEST_POINTS, FEWEST_KINDS = 9, 3
"""Trainings that a fit needs, and how many different lengths and different shares among them."""
LOW, HIGH = np.array([0.05, 0.05, 1e-3, 0.05]), np.array([4.0, 2.0, 1.0, 4.0])
"""Bounds of eta, b, eps and g."""
STARTS = [*product((0.3, 1.5), (0.3,), (0.01, 0.3), (0.3, 1.5))]
"""Where the search for them begins."""
LARGEST, STEP = 0.5, 0.01
"""Shares of replayed text among which one is named."""


@dataclass(frozen=True)
class MixtureLaw:
    """A fitted law."""

    exponents: tuple[float, float, float, float]
    """eta, b, eps, g."""
    factors: tuple[float, float, float]
    """E, B, C, with D in units of `unit`; none is below 0."""
    unit: float
    """The longest training [tokens]."""
    error: float = 0.0
    """Root mean square of the differences from the law fitted to all other points [nats]."""
    explained: float = 0.0
    """1 - the sum of their squares over that of differences from the mean of all; below 0 the mean predicts better."""

    def loss(self, tokens: float, share: float) -> float:
        """The law's loss [nats].

        Args:
            tokens: that are trained on.
            share: that text of the kind measured has of them.
        """
        row = _terms(np.array(self.exponents), np.array([tokens / self.unit]), np.array([share]))
        return float((row @ np.array(self.factors))[0])


def fit_law(tokens: Sequence[float], shares: Sequence[float], losses: Sequence[float]) -> MixtureLaw | None:
    """Fits the law by least squares, and tells by leaving out each point how well it predicts.

    Args:
        tokens: that each training took.
        shares: that text of the kind measured had of them.
        losses: measured at its end [nats].

    Returns:
        None where there are too few trainings, lengths or shares to tell the terms apart.
    """
    if len(losses) < FEWEST_POINTS or min(len({*tokens}), len({*shares})) < FEWEST_KINDS:
        return None
    length, share, loss = (np.asarray(each, dtype=float) for each in (tokens, shares, losses))
    unit = float(length.max())

    def squared(exponents: np.ndarray) -> float:
        return float(np.square(_residuals(exponents, length / unit, share, loss)).sum())

    best = min((_search(np.array(start), length / unit, share, loss) for start in STARTS), key=squared)
    left_out = []
    for place in range(len(loss)):
        rest = np.arange(len(loss)) != place
        exponents = _search(best, length[rest] / unit, share[rest], loss[rest])
        predicted = _law(exponents, length[rest], share[rest], loss[rest], unit).loss(length[place], share[place])
        left_out.append(loss[place] - predicted)
    squares, spread = float(np.square(left_out).sum()), float(np.square(loss - loss.mean()).sum())
    fitted = _law(best, length, share, loss, unit)
    explained = 1 - squares / spread if spread else 0.0
    return MixtureLaw(fitted.exponents, fitted.factors, unit, (squares / len(loss)) ** 0.5, explained)


def share_that_keeps(law: MixtureLaw, tokens: float, before: float) -> float | None:
    """The smallest share of replayed text with which the loss on such text ends no higher than it was; None: none does.

    Args:
        law: of the loss on general text.
        tokens: that are trained on.
        before: the loss before the training [nats].
    """
    shares = np.arange(0, LARGEST + STEP / 2, STEP)
    return next((float(share) for share in shares if law.loss(tokens, float(share)) <= before), None)


def _terms(exponents: np.ndarray, length: np.ndarray, share: np.ndarray) -> np.ndarray:
    """What E, B and C are multiplied with, [points, 3]."""
    eta, b, eps, g = exponents
    terms: np.ndarray = np.stack([np.ones_like(length), share**eta / length**b, (share + eps) ** -g], axis=1)
    return terms


def _law(exponents: np.ndarray, length: np.ndarray, share: np.ndarray, loss: np.ndarray, unit: float) -> MixtureLaw:
    factors, _ = nnls(_terms(exponents, length / unit, share), loss)
    eta, b, eps, g = map(float, exponents)
    return MixtureLaw((eta, b, eps, g), (float(factors[0]), float(factors[1]), float(factors[2])), unit)


def _residuals(exponents: np.ndarray, length: np.ndarray, share: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """With the best factors, which are linear in the law and so need no search."""
    terms = _terms(exponents, length, share)
    residuals: np.ndarray = terms @ nnls(terms, loss)[0] - loss
    return residuals


def _search(start: np.ndarray, length: np.ndarray, share: np.ndarray, loss: np.ndarray) -> np.ndarray:
    found: np.ndarray = least_squares(
        lambda logs: _residuals(np.exp(logs), length, share, loss),
        np.log(np.clip(start, LOW * 1.01, HIGH * 0.99)),
        bounds=(np.log(LOW), np.log(HIGH)),
        max_nfev=60,
    ).x
    factors: np.ndarray = np.exp(found)
    return factors
