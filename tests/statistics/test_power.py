"""Tests the smallest detectable difference with simulated studies whose true difference is exactly this large."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from adapt.statistics.comparison import Comparison, average_over_tasks, compare, conclusion, paired
from adapt.statistics.outcomes import Tested, single_label
from adapt.statistics.power import MOST_SEEDS, Side, Uncertainty, detectable, pairs_needed, seeds_needed

pytestmark = pytest.mark.heavy
NOISE = 0.02
"""Standard deviation of scores over seeds."""


def of_seeds(seeds: int, tasks: int = 1) -> list[Uncertainty]:
    return [Uncertainty(Side(seeds, NOISE**2), Side(seeds, NOISE**2))] * tasks


def standard_error(seeds: int) -> float:
    return NOISE * (2 / seeds) ** 0.5


def found_by_scipy(seeds: int, difference: float, studies: int) -> float:
    """Returns the share of studies with p < .05.

    The test is an exact permutation test, or a t-test if there are more than five seeds.
    """
    rng = np.random.default_rng(7)
    baseline, recipe = rng.normal(0, NOISE, (2, studies, seeds))
    if seeds > 5:
        return float((stats.ttest_ind(recipe + difference, baseline, axis=1).pvalue < 0.05).mean())
    pairs = zip(recipe + difference, baseline, strict=True)
    tests = (
        stats.permutation_test(
            pair, lambda x, y, axis: x.mean(axis) - y.mean(axis), vectorized=True, n_resamples=np.inf
        )
        for pair in pairs
    )
    return float(np.mean([test.pvalue < 0.05 for test in tests]))


@pytest.mark.parametrize(("seeds", "errors"), [(4, 3.9), (5, 3.3), (10, 3.0)])
def test_scores_of_seeds_are_detected_with_the_stated_power(seeds, errors):
    difference = detectable(of_seeds(seeds))
    assert difference == pytest.approx(errors * standard_error(seeds), rel=0.04)
    assert found_by_scipy(seeds, difference, 600) == pytest.approx(0.8, abs=0.05)


def test_many_seeds_have_the_power_of_the_noncentral_t():
    difference, freedom = detectable(of_seeds(12)), 22
    bound = stats.t.ppf(0.975, freedom)
    power = stats.nct.sf(bound, freedom, difference / standard_error(12))
    assert power == pytest.approx(0.8, abs=0.03)


def test_one_seed_per_side_is_tested_by_examples_only():
    alone = [Uncertainty(Side(1, 0.0), Side(1, 0.0), examples=0.01**2)]
    normal = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert detectable(alone) == pytest.approx(0.01 * normal, rel=0.03)


@pytest.mark.parametrize(
    "tasks", [[Uncertainty(Side(3, 1.0), Side(3, 1.0))], [Uncertainty(Side(4, 0.0), Side(4, 0.0))]]
)
def test_studies_that_can_detect_nothing_have_no_detectable_difference(tasks):
    """Three seeds per side give a p of at least .1, and scores that do not vary have no p."""
    assert detectable(tasks) is None


def test_more_tasks_detect_smaller_differences_with_the_stated_power():
    difference = detectable(of_seeds(5, tasks=3))
    assert difference < detectable(of_seeds(5)) / 3**0.5
    rng = np.random.default_rng(1)

    def study() -> Comparison:
        scores = rng.normal(0, NOISE, (3, 2, 5))
        return average_over_tasks(
            [compare(Tested(ours + difference), Tested(theirs), samples=20) for ours, theirs in scores]
        )

    assert power(study, 250) == pytest.approx(0.8, abs=0.07)


@pytest.mark.parametrize(("examples", "apart", "alike"), [(500, 0.02, False), (140, 0.0, True)])
def test_predictions_are_detected_with_the_stated_power(examples, apart, alike):
    """Simulates studies with the smallest detectable difference.

    In the first case, the accuracies of five seeds differ. In the second case, all seeds are mostly right on the same
    examples.
    """
    rng = np.random.default_rng(2)

    def study(difference: float) -> Comparison:
        return compare(*(side(0.5 + more) for more in (difference / 2, -difference / 2)), samples=200)

    def side(accuracy: float) -> Tested:
        """Simulates a recipe. If `alike` is true, its seeds share 90% of their random draws per example."""
        drawn = rng.random((5, examples))
        drawn = np.where(rng.random((5, examples)) < 0.1, drawn, drawn[:1]) if alike else drawn
        right = drawn < accuracy + apart * rng.normal(size=(5, 1))
        return single_label([[1] * examples] * 5, right.astype(int).tolist(), 2, "accuracy")

    difference = float(np.mean([study(0.0).detectable for _ in range(40)]))
    assert power(lambda: study(difference), 200) == pytest.approx(0.8, abs=0.07)


@pytest.mark.parametrize(("difference", "margin"), [(0.02, 0.005), (0.004, 0.025)])
def test_the_seeds_that_are_needed_decide_with_the_stated_probability(difference, margin):
    """Simulates studies with the number of seeds that is needed to decide in 80% of cases.

    In the first case, most studies become significant. In the second case, most intervals lie within the margin.
    """
    rng = np.random.default_rng(3)
    seeds = seeds_needed(of_seeds(5), difference, margin)

    def study() -> Comparison:
        return compare(*(Tested(rng.normal(mean, NOISE, seeds)) for mean in (difference, 0)), samples=20)

    decided = [conclusion(study(), margin) != "open" for _ in range(120)]
    assert np.mean(decided) == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize(("difference", "margin"), [(0.015, 0.005), (0.002, 0.015)])
def test_the_pairs_that_are_needed_decide_with_the_stated_probability(difference, margin):
    rng = np.random.default_rng(4)
    pairs = pairs_needed(difference, NOISE, 3, margin)
    decided = [conclusion(paired(rng.normal(difference, NOISE, pairs)), margin) != "open" for _ in range(300)]
    assert np.mean(decided) == pytest.approx(0.8, abs=0.07)


def test_what_cannot_be_decided_has_no_number_of_seeds():
    assert seeds_needed(of_seeds(5), 0.001, 0.001) is None
    assert seeds_needed(of_seeds(1), 0.5, 0.01) is None  # one seed does not show the variance over seeds
    assert pairs_needed(0.001, NOISE, 6, 0.001) is None
    # More seeds do not help if most of the variance comes from the test examples.
    of_examples = [Uncertainty(Side(5, NOISE**2), Side(5, NOISE**2), examples=0.05**2)]
    assert seeds_needed(of_examples, 0.02, 0.01) is None
    assert seeds_needed(of_seeds(5), 0.02, 0.01) <= MOST_SEEDS


def power(study: Callable[[], Comparison], studies: int) -> float:
    return float(np.mean([study().p < 0.05 for _ in range(studies)]))
