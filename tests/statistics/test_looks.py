"""Tests interim looks of sequential studies: levels by alpha spending, repeated intervals, verdicts and forecasts."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm

from adapt.statistics.comparison import Comparison, compare, freedom_of, paired
from adapt.statistics.looks import (
    corrected_levels,
    judge,
    least_p,
    needs_more_examples,
    nominal_levels,
    outlook,
    repeated_interval,
    samples_for,
    seed_levels,
    seeds_for_verdict,
    spent_level,
)
from adapt.statistics.outcomes import Tested
from adapt.statistics.power import Side, Uncertainty
from adapt.statistics.seeds import LEVEL, SeedRounds, Seen

STUDIES = 20_000
BY_FIVE = SeedRounds(5, 5, 20)


@dataclass(frozen=True)
class Verdicts:
    """Shares of simulated studies by verdict, and their mean number of seeds per side."""

    better: float
    worse: float
    equal: float
    seeds: float


def simulated(rounds, difference, margin, is_paired, correlation=0.0, studies=STUDIES):
    """Simulates studies of one comparison with normal scores of standard deviation 1, decided by Student's t.

    The permutation tests of the real rule are left out. They only make the verdicts "better" and "worse" less frequent.
    """
    rng = np.random.default_rng(7)
    shared, mine, theirs = rng.standard_normal((3, studies, rounds.max_seeds))
    a, b = (correlation**0.5 * shared + (1 - correlation) ** 0.5 * own for own in (mine, theirs))
    a = a + difference
    levels = seed_levels(rounds.spending, rounds.seeds)
    verdict, used = np.full(studies, "open", dtype="<U6"), np.full(studies, rounds.max_seeds)
    for level, n in zip(levels, rounds.seeds, strict=True):
        gap = a[:, :n].mean(1) - b[:, :n].mean(1)
        if is_paired:
            error, freedom = (a - b)[:, :n].std(1, ddof=1) / n**0.5, np.full(studies, n - 1.0)
        else:
            first, second = a[:, :n].var(1, ddof=1) / n, b[:, :n].var(1, ddof=1) / n
            error, freedom = np.sqrt(first + second), (first + second) ** 2 * (n - 1) / (first**2 + second**2)
        half = stats.t.isf(level / 2, freedom) * error
        is_open = verdict == "open"
        is_equal = is_open & (np.abs(gap) + half < margin)
        found = is_open & ~is_equal & (np.abs(gap) > half)
        verdict[is_equal], verdict[found & (gap > 0)], verdict[found & (gap < 0)] = "equal", "better", "worse"
        used[is_equal | found] = n
    return Verdicts(*(float((verdict == name).mean()) for name in ("better", "worse", "equal")), float(used.mean()))


ROUNDS = [BY_FIVE, SeedRounds(5, 5, 20, "pocock"), SeedRounds(3, 3, 9), SeedRounds(4, 1, 12, "pocock")]
MOST = 0.05 + 3 * (0.05 * 0.95 / STUDIES) ** 0.5
"""Maximum accepted share of false verdicts: 5% plus three standard errors of the simulation."""


@pytest.mark.parametrize("rounds", ROUNDS, ids=lambda rounds: f"{rounds.seeds}-{rounds.spending}")
@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_false_verdicts_of_all_looks_together_are_at_most_five_percent(rounds, is_paired, correlation):
    equal = simulated(rounds, 0.0, 0.5, is_paired, correlation)
    assert equal.better + equal.worse <= MOST
    for margin in (0.5, 1.5):
        edge = simulated(rounds, margin, margin, is_paired, correlation)
        assert edge.equal + edge.worse <= MOST


def of_sides(first, second, luck, n):
    """Returns a comparison of two recipes whose scores have these variances over n seeds.

    The part `luck` of each variance comes from the choice of the test examples.

    The standard error is computed as in `compare`: over examples, and over seeds without the part due to examples.
    """
    sides = Side(n, first, luck), Side(n, second, luck)
    error = ((2 * luck + sum(float(side.own(side.variance)) for side in sides)) / n) ** 0.5
    return Comparison(0.0, None, None, error, 0.0, None, ("examples", "seeds"), np.empty(0), {}, (Uncertainty(*sides),))


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_intervals_hold_if_much_of_the_variance_over_seeds_is_luck_with_examples(spending):
    """The estimated variance over seeds may be below the part that comes from examples, but is still uncertain."""
    rounds, luck, studies = SeedRounds(3, 2, 9, spending), 0.35, 8000
    scores = np.random.default_rng(11).standard_normal((2, studies, rounds.max_seeds))
    missed = np.zeros(studies, dtype=bool)
    for level, n in zip(seed_levels(spending, rounds.seeds), rounds.seeds, strict=True):
        gaps = scores[0, :, :n].mean(1) - scores[1, :, :n].mean(1)
        first, second = scores[:, :, :n].var(2, ddof=1)
        found = [of_sides(float(a), float(b), luck, n) for a, b in zip(first, second, strict=True)]
        errors, freedoms = np.array([(each.error, freedom_of(each)) for each in found]).T
        missed |= np.abs(gaps) > stats.t.isf(level / 2, freedoms) * errors
    assert missed.mean() <= 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5


def test_variances_below_their_luck_have_the_degrees_of_freedom_of_satterthwaite():
    assert freedom_of(of_sides(0.5, 0.5, 1.0, 5)) == pytest.approx((2 / 5) ** 2 / (2 * (0.5 / 5) ** 2 / 4))


def test_looking_often_without_spending_would_be_wrong_more_often():
    rng = np.random.default_rng(0)
    differences = rng.standard_normal((4000, 20))
    ps = np.stack([stats.ttest_1samp(differences[:, :n], 0, axis=1).pvalue for n in BY_FIVE.seeds])
    assert (ps < 0.05).any(0).mean() > 0.11


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_recipes_with_one_baseline_have_one_error_rate_together(spending):
    """Four equal recipes share a baseline. The share of studies with any false verdict is at most 5%."""
    rng, recipes, studies = np.random.default_rng(3), 4, 6000
    scores = rng.standard_normal((recipes + 1, studies, 20))
    rounds, wrong = SeedRounds(5, 5, 20, spending), np.zeros(studies, dtype=bool)
    for look, n in enumerate(rounds.seeds, 1):
        ps = np.stack([stats.ttest_ind(each[:, :n], scores[0, :, :n], axis=1).pvalue for each in scores[1:]])
        wrong |= ps.min(0) < corrected_levels(spending, rounds.seeds, look, recipes)[0]
    assert wrong.mean() <= 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5


def test_a_sequential_study_finds_nearly_as_much_as_one_look_with_fewer_seeds():
    """With one look at 20 seeds per side, a difference of one standard deviation is found in 87% of studies."""
    found, once = (simulated(rounds, 1.0, 0.2, False) for rounds in (BY_FIVE, SeedRounds(20, 1, 20)))
    assert once.better > found.better > once.better - 0.04
    assert found.seeds < 17
    assert found.worse < 0.001


def test_equal_recipes_end_as_equal_if_the_margin_is_wide_enough():
    found = simulated(BY_FIVE, 0.0, 1.5, False)
    assert found.equal > 0.95
    assert found.seeds < 15.5


@pytest.mark.parametrize("n", [5, 10, 15, 20])
def test_a_look_decides_like_the_simulated_rule(n):
    """The interval of a look equals the interval of scipy's t-test at the confidence of the look."""
    look = BY_FIVE.seeds.index(n) + 1
    level = seed_levels("obrien_fleming", BY_FIVE.seeds)[look - 1]
    values = np.random.default_rng(n).normal(0.3, 1, n)
    found = judge({"new": paired(values)}, BY_FIVE, look, 0.01, 1, 1)["new"]
    expected = stats.ttest_1samp(values, 0).confidence_interval(1 - level)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert found.level == level


def test_scores_of_two_sides_have_the_interval_of_welchs_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.7, 0.02, 8), rng.normal(0.6, 0.01, 8)
    low, high = repeated_interval(compare(Tested(a), Tested(b)), 0.01)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.99)
    assert (low, high) == pytest.approx(tuple(expected))


def test_a_large_difference_is_better_or_worse_and_a_small_one_equal():
    noise = np.random.default_rng(1).normal(0, 0.004, 15)
    comparisons = {
        "up": paired(0.1 + noise),
        "down": paired(-0.1 + noise),
        "same": paired(noise),
        "far": paired(20 * noise),
    }
    found = judge(comparisons, BY_FIVE, 3, 0.01, 4, 4)
    ended = {name: seen.conclusion for name, seen in found.items()}
    assert ended == {"up": "better", "down": "worse", "same": "equal", "far": "open"}
    losses = judge(comparisons, BY_FIVE, 3, 0.01, 4, 4, better=-1)
    assert (losses["up"].conclusion, losses["down"].conclusion) == ("worse", "better")


def test_holm_at_a_look_corrects_for_the_number_of_recipes():
    """Ten positive differences pass the level of a single comparison, but not the smallest of Holm's three levels."""
    weak = paired([0.05, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8, 0.95])
    levels = corrected_levels("obrien_fleming", BY_FIVE.seeds, 2, 3)
    alone = judge({"weak": weak}, BY_FIVE, 2, 0.0, 1, 1)["weak"]
    assert levels[0] < alone.p < levels[2]
    together = judge({"weak": weak, "other": paired(np.tile([-1.0, 1.0], 5))}, BY_FIVE, 2, 0.0, 3, 3)
    assert (alone.conclusion, together["weak"].conclusion) == ("better", "open")
    strong = paired(np.linspace(0.9, 1.1, 14))
    found = judge({"weak": weak, "strong": strong}, BY_FIVE, 2, 0.0, 2, 2)
    assert (found["strong"].level, found["weak"].level) == (
        corrected_levels("obrien_fleming", BY_FIVE.seeds, 2, 2)[0],
        corrected_levels("obrien_fleming", BY_FIVE.seeds, 2, 2)[1],
    )


@pytest.mark.parametrize(("gap", "verdict"), [(1.0, "equal"), (0.0, "better or worse")])
def test_false_verdicts_of_six_recipes_together_are_at_most_five_percent(gap, verdict):
    """Six recipes share a baseline. They differ from it by the margin, or do not differ."""
    rounds, recipes, studies, wrong = SeedRounds(6, 6, 18, "pocock"), 6, 1200, 0
    rng = np.random.default_rng(5)
    for scores in rng.standard_normal((studies, recipes + 1, rounds.max_seeds)):
        open_ones, significant, equal = [*range(recipes)], 0, 0
        for look, n in enumerate(rounds.seeds, 1):
            values = gap + scores[1:, :n] - scores[0, :n]
            errors = values.std(1, ddof=1) / n**0.5
            ps = 2 * stats.t.sf(np.abs(values.mean(1)) / errors, n - 1)
            compared = {
                recipe: Comparison(
                    *(float(values[recipe].mean()), None, None, float(errors[recipe]), float(ps[recipe]), None),
                    *(("seeds",), np.empty(0), {}),
                    pairs=n,
                )
                for recipe in open_ones
            }
            seen = judge(compared, rounds, look, 1.0, recipes - significant, recipes - equal)
            ended = [each.conclusion for each in seen.values()]
            if any(each in verdict for each in ended):
                wrong += 1
                break
            significant += ended.count("better") + ended.count("worse")
            equal += ended.count("equal")
            open_ones = [recipe for recipe in open_ones if seen[recipe].conclusion == "open"]
            if not open_ones:
                break
    assert wrong / studies <= 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5


def test_seeds_that_do_not_vary_decide_nothing():
    found = judge({"new": paired([0.02] * 10, is_varied=False)}, BY_FIVE, 2, 0.05, 1, 1)["new"]
    assert (found.conclusion, found.low, found.p) == ("open", None, None)
    assert outlook(found, BY_FIVE, 2, 0.05, 1, 1).ends == 0.0


def test_the_outlook_expects_more_seeds_for_smaller_differences():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(5)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    outlooks = [
        outlook(judge({"new": paired(noise + gap)}, BY_FIVE, 1, 0.1, 1, 1)["new"], BY_FIVE, 1, 0.1, 1, 1)
        for gap in (1.5, 0.5)
    ]
    assert outlooks[0].seeds < outlooks[1].seeds <= 20
    assert outlooks[0].ends > 0.99 > outlooks[1].ends


@pytest.mark.parametrize(("difference", "margin"), [(0.5, 0.0), (0.1, 0.8)])
def test_a_new_study_with_the_named_seeds_usually_has_a_verdict(difference, margin):
    """Differences of pairs have the standard deviation 1. The study has two recipes, so each test has half of .05."""
    seen = Seen(difference, None, None, 1 / 9**0.5, 0.3, 0.01, "open", ["seeds"], pairs=9)
    needed = seeds_for_verdict(seen, 9, margin, 2, 2)
    assert 9 < needed < 100
    values = difference + np.random.default_rng(0).standard_normal((STUDIES, needed))
    half = stats.t.isf(0.0125, needed - 1) * values.std(1, ddof=1) / needed**0.5
    size = np.abs(values.mean(1))
    assert ((size > half) | (size + half < margin)).mean() == pytest.approx(0.8, abs=0.04)


def test_no_number_of_seeds_is_named_if_none_decides():
    at_the_margin = Seen(0.01, None, None, 0.02, 0.5, 0.01, "open", ["seeds"], fixed=0.015)
    assert seeds_for_verdict(at_the_margin, 18, 0.01, 3, 3) is None
    assert seeds_for_verdict(Seen(0.01, None, None, None, None, 0.01, "open"), 18, 0.01, 3, 3) is None


@pytest.mark.parametrize(("difference", "fixed"), [(0.01, 0.015), (0.01, 0.002), (0.05, 0.015), (0.01, 0.0)])
def test_more_examples_are_needed_if_even_many_seeds_decide_nothing(difference, fixed):
    """The variance over seeds is so small that MOST_SEEDS seeds remove it."""
    seen = Seen(difference, None, None, (fixed**2 + 0.001**2) ** 0.5, 0.5, 0.01, "open", ["seeds"], fixed=fixed)
    decides = seeds_for_verdict(seen, 18, 0.02, 3, 3) is not None
    assert needs_more_examples(seen, 0.02, 3, 3) is not decides


@pytest.mark.parametrize("n", [3, 5, 8, 15, 18])
def test_the_smallest_p_of_a_look_is_that_of_its_tests(n):
    pairs, (a, b) = paired(np.linspace(1.0, 2.0, n)), np.random.default_rng(0).normal(0, 1e-3, (2, n))
    sides = compare(Tested(a + 1), Tested(b))
    for comparison in (pairs, sides):
        seen = judge({"new": comparison}, SeedRounds(n, 1, n + 1), 1, 0.0, 1, 1)["new"]
        assert least_p(seen, n) == pytest.approx(comparison.least_p)


def test_the_outlook_finds_no_difference_at_looks_that_cannot():
    """With three or four pairs, p is at least .25 or .125. Even a huge difference cannot be significant there."""
    rounds = SeedRounds(3, 1, 10, "pocock")
    seen = Seen(1.0, 0.9, 1.1, 0.01, 0.25, 0.01, "open", ["seeds"], pairs=3)
    levels = seed_levels("pocock", rounds.seeds)
    first = next(n for n, level in zip(rounds.seeds, levels, strict=True) if 2.0 ** (1 - n) < level)
    assert first > 5
    assert outlook(seen, rounds, 1, 0.0, 1, 1).seeds == first
    never = Seen(1.0, 0.9, 1.1, 0.01, 0.01, 0.01, "open", ["examples", "seeds"], floor=0.05)
    assert outlook(never, rounds, 1, 0.0, 1, 1).ends == 0.0


def test_looks_draw_enough_permutations_for_their_level():
    assert [samples_for(level) for level in (0.05, 0.002, 1e-6, 0.0)] == [2000, 10_000, 20_000, 20_000]
    assert 20 / (samples_for(0.004) + 1) < 0.004


# Published boundaries of five equally spaced looks at a two-sided level of .05, by Reboussin, DeMets, Kim and Lan 2000.
# The R package ldbounds gives the same boundaries.
PUBLISHED = {
    "obrien_fleming": (4.8769, 3.3569, 2.6803, 2.2898, 2.0310),
    "pocock": (2.4380, 2.4268, 2.4101, 2.3966, 2.3859),
}
FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize("spending", PUBLISHED)
def test_the_boundaries_of_five_looks_are_the_published_ones(spending):
    found = norm.isf(np.array(nominal_levels(spending, FIFTHS)) / 2)
    assert found == pytest.approx(PUBLISHED[spending], abs=2e-3)


@pytest.mark.parametrize("spending", PUBLISHED)
def test_one_look_has_the_whole_level(spending):
    assert nominal_levels(spending, (1.0,)) == pytest.approx((LEVEL,), rel=1e-6)
    assert spent_level(spending, 1.0) == pytest.approx(LEVEL)


@pytest.mark.parametrize("spending", PUBLISHED)
@pytest.mark.parametrize("fractions", [(0.25, 0.5, 0.75, 1.0), (1 / 6, 1 / 3, 1.0), tuple(np.arange(2, 21) / 20)])
def test_random_walks_leave_the_boundaries_as_often_as_the_function_allows(spending, fractions):
    """Walks are sums of independent normal steps. After each look, the share of walks beyond a boundary is compared."""
    rng, studies = np.random.default_rng(1), 60_000
    steps = np.sqrt(np.diff((0.0, *fractions)))
    walks = np.cumsum(steps * rng.standard_normal((studies, len(steps))), axis=1) / np.sqrt(fractions)
    bounds = norm.isf(np.array(nominal_levels(spending, fractions)) / 2)
    left = np.maximum.accumulate(np.abs(walks) > bounds, axis=1).mean(0)
    expected = [spent_level(spending, fraction) for fraction in fractions]
    assert left == pytest.approx(expected, abs=4 * (LEVEL / studies) ** 0.5)


def test_a_look_that_may_use_nothing_has_level_zero():
    assert nominal_levels("obrien_fleming", (0.02, 1.0))[0] == 0.0


def test_the_levels_of_holm_rise_from_bonferroni_to_the_level_alone():
    levels = corrected_levels("pocock", (10, 20), look=2, tests=3)
    alone = seed_levels("pocock", (10, 20), LEVEL)[1]
    assert levels[0] == seed_levels("pocock", (10, 20), LEVEL / 3)[1]
    assert levels == sorted(levels)
    assert levels[-1] == alone


def test_few_seeds_have_stricter_levels_and_many_the_nominal_ones():
    few, many = (4, *range(5, 13)), (100, 200, 400)
    for seeds, least, most in ((few, 0.7, 0.95), (many, 0.97, 1.0)):
        nominal = nominal_levels("pocock", tuple(number / seeds[-1] for number in seeds))
        assert least < seed_levels("pocock", seeds)[0] / nominal[0] <= most
