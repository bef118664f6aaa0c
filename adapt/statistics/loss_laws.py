"""Fits two laws that predict the loss: one from training tokens and mixture, one from the passes over a text.

The D-CPT law (arXiv 2406.01375) predicts the loss on a kind of text after training on a mixture: L(D, r) = E + B r^eta
/ D^b + C / (r + eps)^g, where D is the number of training tokens, and r the share of this kind of text among them. The
law holds for models of the same size (the paper's term A / N^a is then part of E).

The law of repeats says how the loss on a domain falls as its text is repeated, and gives the number of passes beyond
which repeats stop helping. A text of U tokens that is read e times is worth as much as D' = U (1 + R* (1 - exp(-(e - 1)
/ R*))) different tokens (Muennighoff et al., arXiv 2305.16264, equation 5). Each repeat lowers the value of a token.
After R* repeats, the value is 1/e. The law of the loss adds two terms to that paper's B / D'^b:

    L(e, r) = E + B / (D' / U)^b + P (e - 1) + C r

P >= 0 is a penalty for memorizing the text, which grows with the number of repeats; an additive penalty is the proposal
of arXiv 2605.01640, and the linear form is ours. C r is the loss added or saved by a share r of general text. It is
linear because shares are small; this form is ours too. U is fixed, so it is part of B.

The terms of passes and share do not interact, so the number of passes is the same for all shares. The law of
arXiv 2605.12715 includes that general text regularizes, so that the domain's text can be repeated more often. It is
fitted to more than 2,000 training runs. The recipe `small_corpus` has 18, too few for an interaction next to the six
parameters of this law.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import least_squares, minimize, nnls

from adapt.statistics.seeds import CONFIDENCE

FEWEST_POINTS, FEWEST_KINDS = 9, 3
"""Minimum number of training runs for a fit, and minimum number of different lengths and of different shares among
them."""
LOW, HIGH = np.array([0.05, 0.05, 1e-3, 0.05]), np.array([4.0, 2.0, 1.0, 4.0])
"""Bounds of eta, b, eps and g."""
STARTS = [*product((0.3, 1.5), (0.3,), (0.01, 0.3), (0.3, 1.5))]
"""Starting points of the search for eta, b, eps and g."""
LARGEST, STEP = 0.5, 0.01
"""Maximum share of replayed text that `share_that_keeps` tries, and the step between shares."""


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
    """Root mean square error [nats] of leave-one-out predictions: each loss is predicted from a fit to all other
    runs."""
    explained: float = 0.0
    """Share of the losses' variance that these predictions explain. Below 0, the mean predicts better than the law."""

    def loss(self, tokens: float, share: float) -> float:
        """Predicts the loss [nats].

        Args:
            tokens: number of training tokens.
            share: share of the measured kind of text among the training tokens, from 0 to 1.
        """
        row = _terms(np.array(self.exponents), np.array([tokens / self.unit]), np.array([share]))
        return float((row @ np.array(self.factors))[0])


def fit_law(tokens: Sequence[float], shares: Sequence[float], losses: Sequence[float]) -> MixtureLaw | None:
    """Fits the law by least squares, and measures how well it predicts each point from a fit to the other points.

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
    """Returns the residuals with the E, B and C that fit best by least squares. The law is linear in E, B and C."""
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


FEWEST_TRAININGS, FEWEST_PASSES = 8, 4
"""Minimum number of training runs for a fit, and minimum number of different numbers of passes among these runs."""
EXPONENTS = np.geomspace(0.05, 3.0, 12)
"""Values of b that the search tries first."""
WORTHS = np.geomspace(0.2, 200.0, 16)
"""Values of R* that the search tries first."""
RESAMPLES = 200
"""Number of bootstrap resamples for the interval."""
FAR = 1000.0
"""Maximum number of passes that is considered."""


@dataclass(frozen=True)
class RepeatsLaw:
    """The fitted parameters of the law, and the quality of the fit."""

    exponent: float
    """Fitted b."""
    worth: float
    """Fitted R*: number of repeats after which a repeated token is worth 1/e of a new token."""
    factors: tuple[float, float, float, float]
    """Fitted E, B, P and C [nats]. B and P are not below 0."""
    most: float
    """Maximum number of passes among the fitted training runs."""
    error: float = 0.0
    """Residual standard error [nats]: the sum of squares is divided by the number of points minus parameters."""

    def loss(self, passes: float, share: float = 0.0) -> float:
        """Predicts the loss [nats].

        Args:
            passes: number of times that the text is read; may be below 1.
            share: share of general text among the training sequences.
        """
        terms = _repeat_terms(self.exponent, self.worth, np.array([passes]), np.array([share]))
        return float((terms @ _signed(self.factors))[0])

    def stops_at(self, margin: float) -> float:
        """Returns the number of passes beyond which repeats lower the loss by less than a margin.

        Args:
            margin: largest difference of losses that does not matter [nats].

        Returns:
            The smallest number of passes from which additional passes lower the loss by at most `margin`.
        """
        passes = np.concatenate([np.geomspace(1.0, FAR, 600)])
        terms = _repeat_terms(self.exponent, self.worth, passes, np.zeros_like(passes))
        losses = terms @ _signed(self.factors)
        lowest_later = np.minimum.accumulate(losses[::-1])[::-1]
        return float(passes[np.argmax(losses - lowest_later <= margin)])


@dataclass(frozen=True)
class Stop:
    """The number of passes beyond which repeats stop helping."""

    passes: float | None
    """The number of passes according to the law. None if all training runs have fewer passes."""
    low: float
    """Lower end of the 95% interval, by resampling residuals."""
    high: float | None
    """Upper end of the interval; None if it is beyond the largest number of passes."""


def fit_repeats(passes: Sequence[float], shares: Sequence[float], losses: Sequence[float]) -> RepeatsLaw | None:
    """Fits the law by least squares.

    Args:
        passes: number of times that each training run reads the domain's text.
        shares: share of general text in each training run, from 0 to 1.
        losses: loss on the domain at the end of each training run [nats].

    Returns:
        The law; None if there are too few training runs, or too few different numbers of passes.
    """
    if len(losses) < FEWEST_TRAININGS or len({*passes}) < FEWEST_PASSES:
        return None
    read, share, loss = (np.asarray(values, dtype=float) for values in (passes, shares, losses))
    return _fitted(read, share, loss, refined=True)


def stop_of(
    law: RepeatsLaw, passes: Sequence[float], shares: Sequence[float], losses: Sequence[float], margin: float
) -> Stop:
    """Returns the number of passes beyond which repeats lower the loss by less than a margin, with a 95% interval.

    The interval is computed by a bootstrap over residuals. For each resample, the law is fitted to its own predictions
    plus residuals. The residuals are drawn with replacement, and enlarged to account for the number of parameters.

    Args:
        law: the law that was fitted to these training runs.
        passes: number of times that each training run reads the domain's text.
        shares: share of general text in each training run.
        losses: loss on the domain at the end of each training run [nats].
        margin: largest difference of losses that does not matter [nats].
    """
    read, share, loss = (np.asarray(values, dtype=float) for values in (passes, shares, losses))
    predicted = np.array([law.loss(*point) for point in zip(read, share, strict=True)])
    residuals = loss - predicted
    enlarged = residuals * (len(loss) / max(len(loss) - _parameters(share), 1)) ** 0.5
    generator = np.random.default_rng(0)
    ends = [
        _fitted(read, share, predicted + generator.choice(enlarged, len(loss)), refined=False).stops_at(margin)
        for _ in range(RESAMPLES)
    ]
    rest = (1 - CONFIDENCE) / 2
    own, (low, high) = law.stops_at(margin), np.quantile(ends, [rest, 1 - rest])
    low, high = min(float(low), own), max(float(high), own)
    return Stop(own if own <= law.most else None, min(low, law.most), high if high <= law.most else None)


def worth_in_tokens(passes: np.ndarray, worth: float) -> np.ndarray:
    """Returns D' / U: the number of different tokens that the repeated text is worth, divided by its size U.

    See equation 5 of arXiv 2305.16264.

    Args:
        passes: number of times that the text is read. Below 1, a part of the text is read once.
        worth: R*.
    """
    repeats = np.maximum(passes - 1, 0.0)
    value: np.ndarray = np.minimum(passes, 1.0) + worth * -np.expm1(-repeats / worth)
    return value


def _repeat_terms(exponent: float, worth: float, passes: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Returns the factors that E, B, P, C and -C are multiplied with in the law, [points, 5]."""
    terms: np.ndarray = np.stack(
        [
            np.ones_like(passes),
            worth_in_tokens(passes, worth) ** -exponent,
            np.maximum(passes - 1, 0.0),
            share,
            -share,
        ],
        axis=1,
    )
    return terms


def _signed(factors: tuple[float, float, float, float]) -> np.ndarray:
    *others, price = factors
    return np.array([*others, max(price, 0.0), max(-price, 0.0)])


def _fitted(read: np.ndarray, share: np.ndarray, loss: np.ndarray, refined: bool) -> RepeatsLaw:
    """Searches b and R* on a grid and, if `refined`, near the grid's best point. Least squares gives E, B, P and C."""

    def squared(exponent: float, worth: float) -> float:
        return float(nnls(_repeat_terms(exponent, worth, read, share), loss)[1]) ** 2

    best = min(product(EXPONENTS.tolist(), WORTHS.tolist()), key=lambda point: squared(*point))
    if refined:
        bounds = [(np.log(values[0]), np.log(values[-1])) for values in (EXPONENTS, WORTHS)]
        found = minimize(lambda logs: squared(*np.exp(logs)), np.log(best), method="Nelder-Mead", bounds=bounds)
        best = min(best, tuple(np.exp(found.x).tolist()), key=lambda point: squared(*point))
    factors, distance = nnls(_repeat_terms(*best, read, share), loss)
    base, gain, penalty, price, bonus = map(float, factors)
    freedom = max(len(loss) - _parameters(share), 1)
    error = float(distance) / freedom**0.5
    return RepeatsLaw(best[0], best[1], (base, gain, penalty, price - bonus), float(read.max()), error)


def _parameters(share: np.ndarray) -> int:
    """Returns the number of fitted parameters. C is fitted only if shares differ."""
    return 6 if np.ptp(share) else 5
