"""Tests differences, intervals and p-values against scipy, closed forms and plain loops."""

import numpy as np
import pytest
from scipy import stats

from adapt.statistics.comparison import average_over_tasks, compare, freedom_of, verdict
from adapt.statistics.outcomes import Tested, single_label
from tests.statistics.made import outcomes

pytestmark = pytest.mark.heavy

A, B = np.array([0.61, 0.64, 0.58, 0.70, 0.66]), np.array([0.69, 0.72, 0.65, 0.71, 0.73])


def sides(rng, recipe=0.75, baseline=0.65, examples=200, **kwargs):
    truth = rng.integers(0, 3, examples)
    return outcomes(recipe, rng, truth, **kwargs), outcomes(baseline, rng, truth, **kwargs)


def test_scores_alone_give_welchs_interval_and_the_exact_p():
    found = compare(Tested(B), Tested(A))
    welch = stats.ttest_ind(B, A, equal_var=False).confidence_interval(0.95)
    assert found.difference == pytest.approx(B.mean() - A.mean())
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high))
    assert found.over == ("seeds",)
    test = stats.permutation_test((B, A), lambda x, y, axis=-1: x.mean(axis) - y.mean(axis), n_resamples=np.inf)
    assert found.p == pytest.approx(test.pvalue)


def test_one_seed_per_side_with_predictions_gives_scipys_paired_bootstrap():
    recipe, baseline = sides(np.random.default_rng(0), examples=300, seeds=1, metric="accuracy")
    found = compare(recipe, baseline, samples=8000)
    right = [np.asarray(side.counts[0].toarray()[:, [0, 4, 8]].sum(1)) for side in (recipe, baseline)]
    wanted = stats.bootstrap(
        right,
        lambda x, y, axis=-1: x.mean(axis) - y.mean(axis),
        paired=True,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    assert (found.low, found.high) == pytest.approx(wanted.confidence_interval, abs=0.006)
    assert found.error == pytest.approx(wanted.standard_error, rel=0.05)
    assert found.over == ("examples",)


def test_the_standard_error_is_right_with_and_without_variance_of_seeds():
    """Covers seeds of different accuracy, and seeds whose scores differ only by chance on the test examples."""
    for apart in (0.0, 0.05):
        rng = np.random.default_rng(0)
        found = [compare(*sides(rng, 0.7, 0.7, 139, apart=apart, metric="accuracy"), samples=200) for _ in range(120)]
        error = np.mean([each.error or 0 for each in found])
        assert error == pytest.approx(np.std([each.difference for each in found]), rel=0.2)


def test_equal_recipes_are_rarely_significant_if_examples_and_seeds_vary_equally():
    """The test over examples and the test over seeds each capture half of the variance.

    Either test alone would reject 10% of equal recipes.
    """
    rng, rejected = np.random.default_rng(5), []
    for _ in range(200):
        truth = rng.integers(0, 3, 139)
        hard = rng.normal(0.7, 1, 139)
        both = []
        for _ in range(2):
            own = hard + rng.normal(0, 0.7, 139)  # difficulty of each example, equal for all seeds of this recipe
            right = [own + rng.normal(0, 0.15) > 0 for _ in range(5)]
            both.append(
                single_label([truth] * 5, [np.where(each, truth, (truth + 1) % 3) for each in right], 3, "accuracy")
            )
        rejected.append((compare(*both, samples=200).p or 0) < 0.05)
    assert np.mean(rejected) <= 0.075


def test_with_many_examples_the_error_is_that_of_the_seeds():
    """With 20,000 examples, only the variance over seeds matters.

    The error must be the standard error of a difference of means over seeds, with n - 1.
    """
    rng = np.random.default_rng(0)
    recipe, baseline = sides(rng, examples=20_000, apart=0.05, metric="accuracy", seeds=4)
    error = np.sqrt(sum(side.scores.var(ddof=1) / 4 for side in (recipe, baseline)))
    assert compare(recipe, baseline, samples=400).error == pytest.approx(error, rel=0.1)


def test_p_is_no_smaller_than_the_p_of_either_test():
    recipe, baseline = sides(np.random.default_rng(0))
    found = compare(recipe, baseline)
    ps = {name: null.p(observed) for name, (null, observed) in found.nulls.items()}
    assert set(ps) == {"examples", "seeds"}
    assert found.p is not None
    assert found.p >= max(ps.values())
    assert found.least_p == pytest.approx(2 / 252)


def test_the_same_seed_gives_the_same_figures():
    recipe, baseline = sides(np.random.default_rng(0))
    first, second, other = (compare(recipe, baseline, seed=seed) for seed in (0, 0, 1))
    assert (first.low, first.p) == (second.low, second.p)
    assert first.low != other.low


def test_one_seed_per_side_without_predictions_has_no_p():
    found = compare(Tested(B[:1]), Tested(A[:1]))
    assert found.difference == pytest.approx(B[0] - A[0])
    assert (found.low, found.p, found.error, found.detectable) == (None, None, None, None)


@pytest.mark.parametrize(("ours", "theirs"), [(0.5, 0.5), (0.1 + 0.2, 0.3), (0.7, 0.5)])
def test_scores_that_do_not_vary_have_no_p(ours, theirs):
    """Equal scores count as copies of one number, however many seeds there are, so they give no p-value."""
    found = compare(
        Tested(np.array([ours, 0.3, 0.3]) if ours == 0.1 + 0.2 else np.full(3, ours)), Tested(np.full(3, theirs))
    )
    assert (found.low, found.high, found.error, found.detectable) == (None, None, None, None)
    assert (found.p, found.over, found.is_constant) == (None, (), True)
    many = compare(Tested(np.full(50, ours)), Tested(np.full(50, theirs)))
    assert (many.p, many.low) == (None, None)
    assert "because the scores do not vary between seeds and there are no predictions" in verdict(many)


def test_equal_predictions_of_all_seeds_are_tested_by_examples_only():
    """The predictions of the recipes differ in one of 139 examples, for all five seeds.

    Seeds do not vary, so only examples are tested.
    """
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 139)
    before = np.where(rng.random(139) < 0.35, truth, 0)
    after = before.copy()
    after[np.flatnonzero(before != truth)[0]] = truth[np.flatnonzero(before != truth)[0]]
    sides = (single_label([truth.tolist()] * 5, [each.tolist()] * 5, 6, "accuracy") for each in (after, before))
    found = compare(*sides)
    assert (found.over, found.p) == (("examples",), 1.0)
    assert "(the scores do not vary between seeds)" in verdict(found)


def test_a_side_whose_seeds_do_not_vary_counts_as_one_number():
    """If one recipe does not vary over seeds, the test flips the signs of five differences. Its smallest p is 2 / 32.

    A permutation of ten seeds could reach p = 2 / 252.
    """
    found = compare(Tested(np.array([0.71, 0.72, 0.69, 0.74, 0.7])), Tested(np.full(5, 0.5)))
    other = compare(Tested(np.full(5, 0.5)), Tested(np.array([0.71, 0.72, 0.69, 0.74, 0.7])))
    assert found.p == found.least_p == other.p == 2 / 32
    assert found.over == ("seeds",)
    assert other.difference == -found.difference
    assert found.detectable is None  # no difference has a p below .05


def test_a_side_that_does_not_vary_has_the_nominal_false_positive_rate():
    rng = np.random.default_rng(4)
    constant = Tested(np.full(8, 0.5))
    ps = np.array([compare(Tested(rng.normal(0.5, 0.02, 8)), constant, samples=20).p for _ in range(600)])
    assert 0.03 <= (ps < 0.05).mean() <= 0.07


def test_an_average_over_tasks_includes_the_variance_of_seeds_of_some_tasks():
    """The seeds of one task do not vary, so seeds cannot be permuted.

    The p-value must still include the variance between the other task's seeds.
    """
    rng = np.random.default_rng(0)
    truth = (np.arange(300) % 3).tolist()
    wrong = [(each + 1) % 3 for each in truth]
    still = [single_label([truth] * 5, [right] * 5, 3, "accuracy") for right in (truth[:200] + wrong[200:],) * 2]
    apart = [outcomes(accuracy, rng, np.array(truth), apart=0.15, metric="accuracy") for accuracy in (0.62, 0.6)]
    average = average_over_tasks([compare(*still), compare(*apart)])
    assert average.over == ("examples",)
    (null, observed), error = average.nulls["examples"], average.error
    assert error is not None
    assert average.p is not None
    assert average.p >= null.p(observed)
    assert average.p == pytest.approx(2 * stats.norm.sf(abs(average.difference) / error), abs=0.2)


def test_equal_predictions_have_no_interval():
    same = outcomes(0.7, np.random.default_rng(0), np.arange(90) % 3, seeds=1)
    found = compare(same, same)
    assert (found.difference, found.low, found.p) == (0.0, None, 1.0)


def test_unequal_numbers_of_seeds_are_compared():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 100)
    recipe, baseline = outcomes(0.8, rng, truth, seeds=3), outcomes(0.6, rng, truth, seeds=5)
    found = compare(recipe, baseline)
    assert found.difference == pytest.approx(recipe.scores.mean() - baseline.scores.mean())
    assert found.low is not None
    assert found.low < found.difference < (found.high or 0)


def test_the_interval_covers_the_truth():
    """The score is accuracy, so the true difference is known to be 0.1. The seeds have different accuracies."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(120):
        found = compare(*sides(rng, 0.7, 0.6, 150, metric="accuracy", apart=0.03), samples=300)
        covered.append((found.low or 0) <= 0.1 <= (found.high or 0))
    assert np.mean(covered) >= 0.88


def test_the_average_over_tasks_has_the_error_of_independent_tasks():
    rng = np.random.default_rng(0)
    found = [compare(*sides(rng, examples=n)) for n in (100, 200, 400)]
    pooled = average_over_tasks(found)
    assert pooled.difference == pytest.approx(np.mean([each.difference for each in found]))
    assert pooled.error == pytest.approx(sum((each.error or 0) ** 2 for each in found) ** 0.5 / 3, rel=0.06)
    assert pooled.p is not None
    assert pooled.p < min(each.p or 0 for each in found)  # three tasks that agree are stronger evidence than each task


def test_the_average_over_tasks_has_the_degrees_of_freedom_of_satterthwaite():
    """Four equal tasks with ten seeds per side have eight samples, so about 8 x 9 degrees of freedom."""
    rng = np.random.default_rng(0)
    sample = rng.normal(0, 0.01, 10)
    found = [compare(Tested(rng.permutation(sample) + 0.001), Tested(rng.permutation(sample))) for _ in range(4)]
    assert freedom_of(average_over_tasks(found)) == pytest.approx(8 * 9, rel=0.15)  # the error comes from 2,000 draws


def test_the_average_over_one_task_is_that_task():
    found = compare(*sides(np.random.default_rng(0)))
    pooled = average_over_tasks([found])
    assert (pooled.difference, pooled.low, pooled.p) == (found.difference, found.low, found.p)


def test_the_p_of_an_average_is_that_of_all_arrangements():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(0.02, 0.03, 3), rng.normal(0, 0.03, 3)) for _ in range(2)]
    found = average_over_tasks([compare(Tested(b), Tested(a)) for b, a in pairs])
    nulls = [compare(Tested(b), Tested(a)).nulls["seeds"][0].values for b, a in pairs]
    all_of_them = np.abs(nulls[0][:, None] + nulls[1][None, :]) / 2
    assert found.p == pytest.approx(np.mean(all_of_them >= abs(found.difference) - 1e-12), abs=0.03)
