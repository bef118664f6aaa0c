"""Fits the D-CPT law (arXiv 2406.01375), which predicts the loss on a kind of text after training on a mixture.

L(D, r) = E + B r^eta / D^b + C / (r + eps)^g, where D is the number of training tokens, and r the share of this kind of
text among them. The law holds for models of the same size (the paper's term A / N^a is then part of E).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import least_squares, nnls

FEWEST_POINTS, FEWEST_KINDS = 9, 3
"""Smallest number of training runs for a fit, and smallest number of different lengths and shares among them."""
LOW, HIGH = np.array([0.05, 0.05, 1e-3, 0.05]), np.array([4.0, 2.0, 1.0, 4.0])
"""Bounds of eta, b, eps and g."""
STARTS = [*product((0.3, 1.5), (0.3,), (0.01, 0.3), (0.3, 1.5))]
"""Starting points of the search for eta, b, eps and g."""
LARGEST, STEP = 0.5, 0.01
"""Largest share of replayed text that `share_that_keeps` tries, and the step between shares."""


@dataclass(frozen=True)
class MixtureLaw:
    """The fitted parameters of the law, and the quality of the fit."""

    exponents: tuple[float, float, float, float]
    """Fitted eta, b, eps and g."""
    factors: tuple[float, float, float]
    """Fitted E, B and C, with D in units of `unit`; none is below 0."""
    unit: float
    """Length of the longest training run [tokens]."""
    error: float = 0.0
    """Root mean square error of predicting each point from a fit to all others [nats]."""
    explained: float = 0.0
    """Share of the losses' variance that these predictions explain. Below 0, the mean predicts better than the law."""

    def loss(self, tokens: float, share: float) -> float:
        """Predicts the loss [nats].

        Args:
            tokens: number of training tokens.
            share: share of the measured kind of text among them, from 0 to 1.
        """
        row = _terms(np.array(self.exponents), np.array([tokens / self.unit]), np.array([share]))
        return float((row @ np.array(self.factors))[0])


def fit_law(tokens: Sequence[float], shares: Sequence[float], losses: Sequence[float]) -> MixtureLaw | None:
    """Fits the law by least squares, and measures how well it predicts each point if fitted to the others.

    Args:
        tokens: number of training tokens of each run.
        shares: share of the measured kind of text in each run, from 0 to 1.
        losses: loss at the end of each run [nats].

    Returns:
        The law; None if there are too few runs, lengths or shares to fit all terms.
    """
    if len(losses) < FEWEST_POINTS or min(len({*tokens}), len({*shares})) < FEWEST_KINDS:
        return None
    length, share, loss = (np.asarray(values, dtype=float) for values in (tokens, shares, losses))
    unit = float(length.max())

    def squared(exponents: np.ndarray) -> float:
        return float(np.square(_residuals(exponents, length / unit, share, loss)).sum())

    best = min((_search(np.array(start), length / unit, share, loss) for start in STARTS), key=squared)
    left_out = []
    for point in range(len(loss)):
        rest = np.arange(len(loss)) != point
        exponents = _search(best, length[rest] / unit, share[rest], loss[rest])
        predicted = _law(exponents, length[rest], share[rest], loss[rest], unit).loss(length[point], share[point])
        left_out.append(loss[point] - predicted)
    squares, spread = float(np.square(left_out).sum()), float(np.square(loss - loss.mean()).sum())
    fitted = _law(best, length, share, loss, unit)
    explained = 1 - squares / spread if spread else 0.0
    return MixtureLaw(fitted.exponents, fitted.factors, unit, (squares / len(loss)) ** 0.5, explained)


def share_that_keeps(law: MixtureLaw, tokens: float, before: float) -> float | None:
    """Returns the smallest share of replayed general text with which the loss on general text does not rise.

    Returns None if the loss rises with every share up to LARGEST.

    Args:
      law: law of the loss on general text.
      tokens: number of training tokens.
      before: loss before the training [nats].
    """
    shares = np.arange(0, LARGEST + STEP / 2, STEP)
    return next((float(share) for share in shares if law.loss(tokens, float(share)) <= before), None)


def _terms(exponents: np.ndarray, length: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Returns the factors that E, B and C are multiplied with in the law, [points, 3]."""
    eta, b, eps, g = exponents
    terms: np.ndarray = np.stack([np.ones_like(length), share**eta / length**b, (share + eps) ** -g], axis=1)
    return terms


def _law(exponents: np.ndarray, length: np.ndarray, share: np.ndarray, loss: np.ndarray, unit: float) -> MixtureLaw:
    factors, _ = nnls(_terms(exponents, length / unit, share), loss)
    eta, b, eps, g = map(float, exponents)
    return MixtureLaw((eta, b, eps, g), (float(factors[0]), float(factors[1]), float(factors[2])), unit)


def _residuals(exponents: np.ndarray, length: np.ndarray, share: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Returns the residuals with the best E, B and C. Least squares gives these, as the law is linear in E, B and C."""
    terms = _terms(exponents, length, share)
    residuals: np.ndarray = terms @ nnls(terms, loss)[0] - loss
    return residuals


def _search(start: np.ndarray, length: np.ndarray, share: np.ndarray, loss: np.ndarray) -> np.ndarray:
    logarithms: np.ndarray = least_squares(
        lambda logs: _residuals(np.exp(logs), length, share, loss),
        np.log(np.clip(start, LOW * 1.01, HIGH * 0.99)),
        bounds=(np.log(LOW), np.log(HIGH)),
        max_nfev=60,
    ).x
    exponents: np.ndarray = np.exp(logarithms)
    return exponents
