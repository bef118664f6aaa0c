"""Estimates against closed forms, a plain bootstrap and the normal approximation."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adapt.evaluate.statistics import change, mean_loss

N = 1000


@pytest.fixture(scope="module")
def measured() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses of two models on 1000 documents of unequal length; documents differ more than the models do."""
    draw = np.random.default_rng(0)
    counts = draw.geometric(0.1, N)
    difficulty = draw.normal(2.0, 0.7, N)
    before = counts * (difficulty + draw.normal(0, 0.1, N))
    after = counts * (difficulty - 0.2 + draw.normal(0, 0.1, N))
    return before, after, counts


def delta_method(losses: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Normal interval of a ratio of sums over independent documents."""
    ratio = losses.sum() / counts.sum()
    deviation = np.sqrt(((losses - ratio * counts) ** 2).sum()) / counts.sum()
    return ratio - 1.96 * deviation, ratio + 1.96 * deviation


def plain_bootstrap(losses: np.ndarray, counts: np.ndarray, samples: int = 4000) -> tuple[float, float]:
    draw = np.random.default_rng(1)
    ratios = []
    for _ in range(samples):
        chosen = draw.integers(0, len(losses), len(losses))
        ratios.append(losses[chosen].sum() / counts[chosen].sum())
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 500)), min_size=1, max_size=20))
def test_value_is_summed_loss_over_summed_predictions(documents: list[tuple[float, int]]) -> None:
    losses, counts = (np.array([document[i] for document in documents]) for i in (0, 1))
    value = mean_loss(losses, counts, 10).value
    assert value == pytest.approx(sum(loss for loss, _ in documents) / sum(count for _, count in documents))


def test_documents_weigh_by_their_predictions() -> None:
    assert mean_loss(np.array([1.0, 27.0]), np.array([1, 9]), 10).value == 2.8  # and not the mean of 1 and 3


def test_interval_agrees_with_bootstrap_and_normal_approximation(
    measured: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    before, after, counts = measured
    for losses in (before, after, after - before):
        estimate = mean_loss(losses, counts, 4000)
        assert estimate.low is not None
        assert estimate.high is not None
        width = estimate.high - estimate.low
        assert estimate.low < estimate.value < estimate.high
        for low, high in (delta_method(losses, counts), plain_bootstrap(losses, counts)):
            assert estimate.low == pytest.approx(low, abs=0.06 * width)
            assert estimate.high == pytest.approx(high, abs=0.06 * width)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        counts = draw.geometric(0.1, 100)
        losses = counts * draw.normal(2.0, 0.5, 100)
        estimate = mean_loss(losses, counts, 300)
        covered += estimate.low <= 2.0 <= estimate.high
    assert 0.89 < covered / 300 < 0.985  # 95% but for the noise of 300 trials and the bias of a percentile interval


def test_change_is_paired(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, after, counts = measured
    estimate = change(before, after, counts, 2000)
    old, new = mean_loss(before, counts, 2000), mean_loss(after, counts, 2000)
    assert estimate.value == pytest.approx(new.value - old.value)
    assert estimate.value == pytest.approx(-0.2, abs=0.02)
    width, unpaired = estimate.high - estimate.low, np.hypot(old.high - old.low, new.high - new.low)
    assert width < unpaired / 5
    assert estimate.high < 0


def test_change_has_the_sign_of_a_gain_or_a_loss(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, after, counts = measured
    there, back = change(before, after, counts, 500), change(after, before, counts, 500)
    assert astuple(there) == pytest.approx((-back.value, -back.high, -back.low))


def test_identical_models_do_not_change(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, _, counts = measured
    assert astuple(change(before, before.copy(), counts, 500)) == (0.0, 0.0, 0.0)


def test_one_document_has_no_interval() -> None:
    assert astuple(mean_loss(np.array([6.0]), np.array([4]), 100)) == (1.5, None, None)
    assert astuple(change(np.array([6.0]), np.array([2.0]), np.array([4]), 100)) == (-1.0, None, None)


@pytest.mark.parametrize("documents", [2, 5])
def test_few_documents_have_none_for_all_may_lie_on_one_side(documents: int) -> None:
    """From the least to the most, five hold their median less than 95% of the time: in 6% all lie on one side."""
    losses, counts = np.arange(1.0, documents + 1), np.ones(documents, int)
    assert astuple(mean_loss(losses, counts, 500)) == (losses.mean(), None, None)
    assert stats.binomtest(0, documents).pvalue > 0.05


def test_six_documents_have_one() -> None:
    found = mean_loss(np.array([1.0, 2, 3, 4, 5, 9]), np.ones(6, int), 500)
    assert found.low is not None
    assert 1 < found.low < 4 < found.high < 9
    assert stats.binomtest(0, 6).pvalue < 0.05


def test_repeatable(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, _, counts = measured
    assert mean_loss(before, counts, 300) == mean_loss(before, counts, 300)


def test_many_documents_need_little_memory() -> None:
    """The resamples of 200,000 documents at once would be 3 GB."""
    import tracemalloc

    losses, counts = np.linspace(1, 2, 200_000), np.ones(200_000, np.int64)
    tracemalloc.start()
    estimate = mean_loss(losses, counts, 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert estimate.value == pytest.approx(1.5)
    assert peak < 600 * 2**20
