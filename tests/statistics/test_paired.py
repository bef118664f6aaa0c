"""Tests paired differences against scipy, Holm's correction, and the sentences of verdicts."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from adapt.statistics.comparison import (
    Comparison,
    conclusion,
    equivalence_p,
    holm,
    p_value,
    paired,
    points,
    significant,
    verdict,
)
from adapt.statistics.power import Side, Uncertainty
from tests.statistics.made import sign_flips


@pytest.mark.parametrize("mine", [[0.71, 0.74, 0.69, 0.75, 0.72, 0.70], [0.74, 0.72, 0.76, 0.73, 0.74, 0.95]])
def test_p_is_the_larger_of_scipys_t_and_sign_flip_tests(mine):
    theirs = [0.70, 0.71, 0.70, 0.72, 0.70, 0.69]
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    found, test = paired(differences), stats.ttest_rel(mine, theirs)
    assert found.p == pytest.approx(max(test.pvalue, sign_flips(differences)))
    assert found.error == pytest.approx(found.difference / test.statistic)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_few_pairs_have_the_interval_of_scipys_t_test(seeds):
    differences = np.random.default_rng(seeds).normal(0.02, 0.01, seeds)
    found, test = paired(differences), stats.ttest_1samp(differences, 0)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.p >= 2.0 ** (1 - seeds)


@pytest.mark.parametrize("pairs", [6, 7, 9, 12, 16])
def test_the_interval_has_exactly_the_means_that_p_does_not_reject(pairs):
    """The test rejects the mean 0 if it lies just outside a sample's interval, and not if it lies just inside."""
    for seed in range(5):
        differences = np.random.default_rng(seed).exponential(1, pairs)
        found = paired(differences)
        for end, out in ((found.low, -1e-6), (found.high, 1e-6)):
            assert paired(differences - end + out).p >= 0.05
            assert paired(differences - end - out).p < 0.05


def test_pairs_of_seeds_that_do_not_vary_have_no_p():
    found = paired([0.02] * 8, is_varied=False)
    assert (found.difference, found.p, found.low, found.is_constant) == (pytest.approx(0.02), None, None, True)


@pytest.mark.parametrize(("pairs", "t_alone", "most"), [(5, 0.10, 0.0), (6, 0.09, 0.08), (10, 0.08, 0.12)])
def test_how_often_skewed_differences_without_a_mean_are_called_significant(pairs, t_alone, most):
    """Draws samples of skewed differences with true mean 0. Student's t-test alone rejects 10 to 12% of the samples.

    With five pairs, the function `paired` rejects none of the samples. With more pairs, it rejects some.
    """
    samples = np.random.default_rng(pairs).exponential(1, (1500, pairs)) - 1
    assert (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05).mean() > t_alone
    assert np.mean([paired(each).p < 0.05 for each in samples]) <= most


@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_equal_methods_are_significant_at_most_as_often_as_the_level_says(draw):
    """Scores of both methods have the same distribution, so differences are symmetric even if scores are skewed."""
    rng = np.random.default_rng(1)
    shape = (1500, 2, 7)
    scores = rng.normal(size=shape) if draw == "normal" else rng.lognormal(0, 1, shape)
    assert np.mean([paired(mine - theirs).p < 0.05 for mine, theirs in scores]) <= 0.055


def test_one_pair_has_no_interval_and_no_p():
    found = paired([0.02])
    assert (found.difference, found.low, found.high, found.error, found.p) == (0.02, None, None, None, None)


@pytest.mark.parametrize("differences", [[0.25] * 3, [0.3, 0.1 + 0.2, 0.3], [-0.1, -0.1]])
def test_equal_differences_have_the_p_of_their_signs(differences):
    found = paired(differences)
    assert found.p == found.least_p == 2.0 ** (1 - len(differences))
    assert (found.low, found.high, found.error) == (None, None, None)


@pytest.mark.parametrize("differences", [[0.0] * 4, [0.0, 1e-17, -1e-17]])
def test_pairs_that_do_not_differ_have_a_p_of_1(differences):
    assert paired(differences).p == 1.0


def test_p_is_never_below_the_p_of_a_sign_flip_test():
    """All differences are positive and hardly vary, so the t-test alone would give p < .001.

    Five signs allow no p below 1/16.
    """
    differences = [0.050, 0.051, 0.049, 0.050, 0.052]
    test = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    found = paired(differences)
    assert stats.ttest_1samp(differences, 0).pvalue < 0.001
    assert found.p == pytest.approx(test.pvalue) == pytest.approx(1 / 16)
    assert found.low is not None


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        # the smallest p is multiplied by 4, the next one by 3, and so on
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.02], [0.02]),
        ([0.5, 0.9, 0.8], [1.0, 1.0, 1.0]),
        ([], []),
    ],
)
def test_holms_correction_by_hand(p, adjusted):
    assert holm(p) == pytest.approx(adjusted)


def test_holms_correction_rejects_what_stepping_down_rejects():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.beta(0.3, 3, rng.integers(1, 8))
        rejected = np.zeros(len(p), bool)
        for step, place in enumerate(np.argsort(p)):  # by definition, rejection stops at the first p above its limit
            if p[place] > 0.05 / (len(p) - step):
                break
            rejected[place] = True
        assert (np.array(holm(p)) <= 0.05).tolist() == rejected.tolist()
        assert (np.array(holm(p)) <= np.clip(p * len(p), 0, 1) + 1e-12).all()


def found(difference=0.041, low=0.012, high=0.07, p=0.008, error=0.015, least=0.001) -> Comparison:
    chance = Uncertainty(Side(1, 0.0), Side(1, 0.0), examples=0.015**2)
    return Comparison(difference, low, high, error, p, least, ("seeds",), np.empty(0), {}, (chance,))


def test_a_significant_difference_is_given_with_its_figures():
    assert verdict(found(), 0.032, "macro-F1") == "+4.1 macro-F1, 95% CI +1.2 to +7.0, p = .008 (Holm .032)"


def test_an_undecided_difference_is_given_with_the_seeds_that_would_decide():
    one = replace(found(0.01, -0.02, 0.04, 0.41), chances=(Uncertainty(Side(5, 0.02**2), Side(5, 0.02**2)),))
    text = verdict(one, margin=0.005)
    assert text.startswith("undecided: +1.0 points, 95% CI \N{MINUS SIGN}2.0 to +4.0, p = .41;")
    # Two samples that differ by half a standard deviation need 64 values each (Cohen 1988, table 2.4.1).
    assert text.endswith("about 64 seeds per side would probably decide the comparison (80% of simulated studies)")
    smaller = replace(one, difference=0.001)
    assert verdict(smaller, margin=0.001).endswith("even 100 seeds would probably not decide the comparison")


def test_without_several_seeds_the_number_that_would_decide_is_not_known():
    assert verdict(found(0.01, -0.02, 0.04, 0.41)).endswith("an estimate needs several seeds with different scores")


@pytest.mark.parametrize(
    ("low", "high", "p", "better", "ended"),
    [
        (-0.009, 0.009, 0.9, 1, "equal"),
        (0.001, 0.009, 0.02, 1, "equal"),  # the difference is significant, but too small to matter
        (-0.009, 0.011, 0.3, 1, "open"),
        (0.001, 0.011, 0.02, 1, "better"),
        (0.001, 0.011, 0.02, -1, "worse"),
        (0.001, 0.011, 0.06, 1, "open"),
        (None, None, None, 1, "open"),
    ],
)
def test_a_comparison_ends_by_its_interval_and_p(low, high, p, better, ended):
    one = found(0.005, low, high, p)
    assert conclusion(one, 0.01, better=better) == ended


def test_the_p_of_equality_is_twice_that_of_two_one_sided_tests():
    differences = np.random.default_rng(1).normal(0.002, 0.004, 5)
    above = stats.ttest_1samp(differences, -0.01, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, 0.01, alternative="less").pvalue
    assert equivalence_p(paired(differences), 0.01) == pytest.approx(2 * max(above, below))
    assert equivalence_p(paired(differences + 1), 0.01) == 1
    assert equivalence_p(paired(differences[:1]), 0.01) is None


def test_among_several_methods_that_differ_by_the_margin_one_is_rarely_called_equal():
    """Without correction, 2.5% of comparisons are wrong, and 10% of studies with four methods."""
    rng, wrong = np.random.default_rng(5), []
    for _ in range(800):
        found = [paired(rng.normal(0.01, 0.005, 5)) for _ in range(4)]
        own = [equivalence_p(one, 0.01) for one in found]
        ends = [[conclusion(one, 0.01, equal=p) for one, p in zip(found, ps, strict=True)] for ps in (own, holm(own))]
        wrong.append(["equal" in ended for ended in ends])
    once, corrected = np.mean(wrong, axis=0)
    assert once > 0.07
    assert corrected < 0.04


def test_an_interval_within_the_margin_can_stay_undecided_after_correction():
    one = found(0.0, -0.009, 0.009, 0.9)
    assert conclusion(one, 0.01, 1.0, equal=0.03) == "equal"
    assert conclusion(one, 0.01, 1.0, equal=0.06) == "open"
    text = verdict(one, 1.0, margin=0.01, equal=0.06)
    assert "; the interval lies within the margin of 1, but not after Holm's correction (p = .060); " in text


def test_the_corrected_p_decides():
    assert significant(found(p=0.03))
    assert not significant(found(p=0.03), 0.12)
    assert verdict(found(p=0.03), 0.12).startswith("undecided")


def test_the_verdict_says_that_there_are_too_few_seeds():
    assert "p cannot fall below .10," in verdict(found(p=0.1, least=0.1))


def test_without_p_the_verdict_claims_nothing():
    text = verdict(found(low=None, high=None, p=None, error=None, least=None))
    assert text == (
        "+4.1 points; significance cannot be tested, because a side has one seed and there are no predictions"
    )
    assert not significant(found(p=None))


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0079, "p = .008"), (0.0004, "p < .001"), (0.05, "p = .050"), (0.41, "p = .41"), (1.0, "p = 1.00")],
)
def test_p_is_formatted(p, text):
    assert p_value(p) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0412, "+4.1"), (-0.021, "\N{MINUS SIGN}2.1"), (-0.0001, "0.0"), (0, "0.0")]
)
def test_points_are_formatted(share, text):
    assert points(share) == text


def test_the_verdict_says_that_there_are_too_many_recipes_for_the_seeds():
    """Five seeds per side give a p of at least .008.

    With 7 recipes, Holm's correction raises it to .056, so no recipe can be significant.
    """
    text = verdict(found(p=0.008, least=0.008), 0.056, recipes=7)
    assert "with so few seeds and 7 recipes p cannot fall below .056," in text
    chances = (Uncertainty(Side(5, 0.02**2), Side(5, 0.02**2)),)
    alone, many = (verdict(replace(found(0.02, p=0.2), chances=chances), 0.4, recipes=number) for number in (1, 7))
    # 17 per side, as in Cohen 1988, table 2.4.1, for effect size 1
    assert "about 17 seeds per side would probably decide" in alone
    assert re.search(r"about 2[78] seeds per side", many)  # with 7 recipes, the level is .05 / 7


def test_the_verdict_mentions_that_a_side_has_one_seed():
    one = Comparison(0.04, 0.01, 0.07, 0.015, 0.01, 0.001, ("examples",), np.empty(0), {})
    assert verdict(one).endswith("p = .010 (a side has one seed, so variation between seeds is not included)")
