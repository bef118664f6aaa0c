"""DSIR's weights against whole counters of word runs, and its sample against what it says of chances."""

import math
from collections import Counter

import numpy as np
import pytest

from adapt.errors import DataError
from adapt.select.dsir import Dsir, DsirOptions
from tests.samples import sentences
from tests.select.pools import given, numbered, ranked

POOL = [text.rstrip(".") for text in sentences(200, shortest=1, longest=12)]
TARGET = [text.rstrip(".") for text in sentences(15, seed=9, shortest=3, longest=8)]


def runs(texts: list[str], longest: int) -> Counter[tuple[str, ...]]:
    words = [text.split() for text in texts]
    sizes = range(1, longest + 1)
    return Counter(tuple(each[n : n + size]) for each in words for size in sizes for n in range(len(each) - size + 1))


def log_weight(text: str, longest: int, buckets: int, smoothing: float) -> float:
    """Equation 1 over the runs of a text, each by its name."""
    target, pool = runs(TARGET, longest), runs(POOL, longest)
    added = smoothing * buckets
    weight = 0.0
    for run, count in runs([text], longest).items():
        q = pool[run] / pool.total()
        p = (target[run] + added * q) / (target.total() + added)
        weight += count * (math.log(p) - math.log(q))
    return weight


@pytest.mark.parametrize(("longest", "smoothing"), [(1, 0.5), (2, 1.0), (3, 0.01)])
def test_weights_are_those_of_whole_counters(longest: int, smoothing: float) -> None:
    buckets = 2**20  # of some 2,000 runs perhaps one pair shares a bucket
    options = DsirOptions(ngram=longest, buckets=buckets, smoothing=smoothing / 2**10, noise=0.0)
    found = dict(ranked(Dsir(options, 0), numbered(POOL), TARGET))
    expected = [log_weight(text, longest, buckets, smoothing / 2**10) for text in POOL]
    difference = np.abs(np.array([found[place] for place in range(len(POOL))]) - expected)
    assert np.quantile(difference, 0.9) < 1e-9


def test_the_mean_is_the_sum_over_the_number_of_grams() -> None:
    by = {}
    for weight in ("sum", "mean"):
        options = DsirOptions(noise=0.0, weight=weight)  # type: ignore[arg-type]
        by[weight] = dict(ranked(Dsir(options, 0), numbered(POOL), TARGET))
    for place, text in enumerate(POOL):
        assert by["mean"][place] * (2 * len(text.split()) - 1) == pytest.approx(by["sum"][place])


def test_noise_makes_a_sample_in_proportion_to_the_weights() -> None:
    """Gumbel top-k: the first is document i with probability w_i / sum w."""
    pool = ["model loss", "layer loss", "word word", "model model"]
    target = ["model loss", "model model model", "loss"]
    quiet = dict(ranked(Dsir(DsirOptions(noise=0.0), 0), numbered(pool), target))
    weights = np.exp([quiet[place] for place in range(4)])
    firsts = Counter(ranked(Dsir(DsirOptions(), seed), numbered(pool), target)[0][0] for seed in range(600))
    shares = np.array([firsts[place] for place in range(4)]) / 600
    assert shares == pytest.approx(weights / weights.sum(), abs=0.07)


def test_what_is_like_the_target_comes_first_and_the_pool_is_read_twice() -> None:
    pool = numbered([*POOL[:50], *TARGET])
    best = [place for place, _ in ranked(Dsir(DsirOptions(noise=0.0, weight="mean"), 0), pool, TARGET)]
    assert set(best[:10]) <= set(range(50, 65))
    assert pool.passes == 2


def test_the_seed_decides_the_noise() -> None:
    one, same, other = (ranked(Dsir(DsirOptions(), seed), numbered(POOL), TARGET) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize(("pool", "target", "which"), [(["..."], ["a"], "pool"), (["a"], ["..."], "target")])
def test_text_without_words_is_refused(pool: list[str], target: list[str], which: str) -> None:
    with pytest.raises(DataError, match=f"the {which} of the selection has no words"):
        Dsir(DsirOptions(), 0).learn(given(numbered(pool), target))
