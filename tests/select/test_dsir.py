"""Tests DSIR's importance weights against exact n-gram counts, and its sampling against exact probabilities."""

import math
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from adapt.select.ngram_selections import GUMBEL, Dsir, DsirOptions
from adapt.select.selection import draws_at
from adapt.support.errors import DataError
from tests.samples import sentences
from tests.select.pools import given, numbered, ranked

POOL = [text.rstrip(".") for text in sentences(200, shortest=1, longest=12)]
TARGET = [text.rstrip(".") for text in sentences(15, seed=9, shortest=3, longest=8)]


def runs(texts: list[str], longest: int) -> Counter[tuple[str, ...]]:
    words = [text.split() for text in texts]
    sizes = range(1, longest + 1)
    return Counter(tuple(each[n : n + size]) for each in words for size in sizes for n in range(len(each) - size + 1))


BUCKETS = 2**21
"""Number of hash buckets, so large that no two n-grams of the texts in this file share a bucket."""


def shares(texts: list[str], longest: int) -> dict[tuple[str, ...], float]:
    """Returns the relative frequency of each n-gram. All texts have the same total weight."""
    found: dict[tuple[str, ...], float] = {}
    for text in texts:
        own = runs([text], longest)
        for run, count in own.items():
            found[run] = found.get(run, 0.0) + count / own.total() / len(texts)
    return found


def log_weight(text: str, pool: list[str], longest: int, smoothing: float) -> float:
    """Returns the log importance weight of a text by equation 1 of DSIR, from exact n-gram counts.

    Every n-gram of TARGET must occur in the pool.
    """
    in_target, in_pool, number = shares(TARGET, longest), shares(pool, longest), runs(TARGET, longest).total()
    added = smoothing * BUCKETS
    weight = 0.0
    for run, count in runs([text], longest).items():
        p = (number * in_target.get(run, 0.0) + added * in_pool[run]) / (number + added)
        weight += count * (math.log(p) - math.log(in_pool[run]))
    return weight


@pytest.mark.parametrize("at_once", [10**9, 7])
@pytest.mark.parametrize(("longest", "smoothing"), [(1, 0.5), (2, 1.0), (3, 0.01)])
def test_weights_are_those_of_whole_counters(longest: int, smoothing: float, at_once: int) -> None:
    pool, smoothing = [*POOL[: 200 if longest < 3 else 90], *TARGET], smoothing / BUCKETS * 1000
    options = DsirOptions(ngram=longest, buckets=BUCKETS, smoothing=smoothing, weight="sum", noise=0.0)
    found = dict(ranked(Dsir(options, 0), numbered(pool, at_once=at_once), TARGET))
    expected = [log_weight(text, pool, longest, smoothing) for text in pool]
    np.testing.assert_allclose([found[id] for id in range(len(pool))], expected, atol=1e-6)


def test_the_mean_is_the_sum_over_the_number_of_grams() -> None:
    """A text of fewer than ten words counts as ten, so its weight is divided by 19 n-grams: 10 words and 9 pairs."""
    by = {}
    for weight in ("sum", "mean"):
        options = DsirOptions(noise=0.0, weight=weight)  # type: ignore[arg-type]
        by[weight] = dict(ranked(Dsir(options, 0), numbered(POOL), TARGET))
    for place, text in enumerate(POOL):
        assert by["mean"][place] * max(2 * len(text.split()) - 1, 19) == pytest.approx(by["sum"][place])


def test_noise_makes_a_sample_in_proportion_to_the_weights() -> None:
    """Each document i with weight w_i must be drawn with the probability of Gumbel top-k sampling.

    The order i, j, ... has the probability w_i / sum(w) * w_j / (sum(w) - w_i) * ...
    """
    pool = numbered(["model loss", "layer loss", "word word", "model model"])
    target = ["model loss", "model model model", "loss"]
    quiet = Dsir(DsirOptions(weight="sum", noise=0.0), 0)
    weights = np.exp([score for _, score in sorted(ranked(quiet, pool, target))])
    orders: Counter[tuple[int, ...]] = Counter()
    for seed in range(3000):
        noisy = Dsir(DsirOptions(weight="sum"), seed)
        noisy.ratios = quiet.ratios
        scores = list(noisy.scores(pool, target))
        orders[tuple(sorted(range(4), key=lambda place: -scores[place]))] += 1
    expected = {}
    for order in permutations(range(4)):
        left = [weights[list(order[place:])].sum() for place in range(4)]
        expected[order] = 3000 * math.prod(weights[each] / rest for each, rest in zip(order, left, strict=True))
    frequent = [order for order, count in expected.items() if count >= 5]
    seen, wanted = [orders[order] for order in frequent], [expected[order] for order in frequent]
    assert len(frequent) > 12
    assert chisquare([*seen, 3000 - sum(seen)], [*wanted, 3000 - sum(wanted)]).pvalue > 0.001


def test_noise_depends_on_the_documents_id() -> None:
    quiet, noisy = (
        dict(ranked(Dsir(DsirOptions(weight="sum", noise=n), 3), numbered(POOL, 2**40), TARGET)) for n in (0.0, 1.0)
    )
    uniform = np.exp(-np.exp([quiet[id] - noisy[id] for id in sorted(quiet)]))
    np.testing.assert_allclose(uniform, draws_at(sorted(quiet), 3, GUMBEL), rtol=1e-6)
    assert dict(ranked(Dsir(DsirOptions(weight="sum"), 3), numbered(POOL, 2**40, at_once=11), TARGET)) == noisy


def test_documents_are_ordered_by_mean_weight_with_target_text_first() -> None:
    texts = [*POOL[:50], *TARGET]
    pool = numbered(texts)
    options = DsirOptions(noise=0.0, weight="mean", buckets=BUCKETS, smoothing=1000 / BUCKETS)
    best = [id for id, _ in ranked(Dsir(options, 0), pool, TARGET)]
    means = [log_weight(text, texts, 2, 1000 / BUCKETS) / max(2 * len(text.split()) - 1, 19) for text in texts]
    assert best == sorted(range(65), key=lambda place: -means[place])
    assert len(set(best[:15]) & set(range(50, 65))) > 10
    assert pool.passes == 2


@pytest.mark.parametrize(("weight", "noise"), [("sum", 1.0), ("mean", 0.0)])
def test_by_default_noise_suits_the_weights(weight: Any, noise: float) -> None:
    same, other = (DsirOptions(weight=weight, noise=value) for value in (noise, None))
    by_default, wanted = (ranked(Dsir(options, 0), numbered(POOL), TARGET) for options in (other, same))
    assert by_default == wanted


def test_the_seed_decides_the_noise() -> None:
    one, same, other = (ranked(Dsir(DsirOptions(weight="sum"), seed), numbered(POOL), TARGET) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize(("pool", "target", "which"), [(["..."], ["a"], "pool"), (["a"], ["..."], "target")])
def test_text_without_words_is_refused(pool: list[str], target: list[str], which: str) -> None:
    with pytest.raises(DataError, match=f"the {which} of the selection has no words"):
        Dsir(DsirOptions(), 0).learn(given(numbered(pool), target))


def test_a_target_that_shares_no_word_with_the_pool_is_refused() -> None:
    with pytest.raises(DataError, match="no word of the selection's target occurs in the pool"):
        Dsir(DsirOptions(), 0).learn(given(numbered(POOL), ["zzz yyy xxx"]))


def test_grams_that_never_occur_in_the_pool_are_ignored() -> None:
    """Words of markup in the target change no score.

    Each of the few buckets contains words of the pool, so buckets do not show which n-grams occur in the pool.
    """
    marked = [f"ENTITYSTART {text} ENTITYEND" for text in TARGET]
    pool = numbered([*POOL, *TARGET])
    plain, with_marks = (ranked(Dsir(DsirOptions(buckets=500), 0), pool, target) for target in (TARGET, marked))
    assert with_marks == plain
