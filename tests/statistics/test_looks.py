"""Tests decisions of looks on single cases, and the shares of false and true verdicts in simulated studies."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from adapt.statistics.comparison import Comparison, compare, paired
from adapt.statistics.looks import freedom_of, judge, least_p, outlook, repeated_interval, samples_for
from adapt.statistics.outcomes import Tested
from adapt.statistics.power import Side, Uncertainty
from adapt.statistics.seed_rounds import SeedRounds, Seen
from adapt.statistics.spending import corrected_levels, seed_levels

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

    The permutation tests of the real rule are left out. They only make verdicts of better and worse rarer.
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
"""Largest accepted share of false verdicts: 5%, and three standard errors of the simulation."""


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
    """Returns a comparison with predictions, whose scores have these variances over n seeds, `luck` of it by examples.

    The standard error is that of `compare`: over examples, and over seeds without the examples' part.
    """
    sides = Side(n, first, luck), Side(n, second, luck)
    error = ((2 * luck + sum(float(side.own(side.variance)) for side in sides)) / n) ** 0.5
    return Comparison(0.0, None, None, error, 0.0, None, ("examples", "seeds"), np.empty(0), {}, (Uncertainty(*sides),))


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_intervals_hold_if_much_of_the_variance_over_seeds_is_luck_with_examples(spending):
    """Variances over seeds may then be smaller than the luck in them, but they stay uncertain."""
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
    """With 20 seeds per side, a difference of one standard deviation is found in 87% of studies at one look."""
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
    """The interval of a look is that of scipy's t-test with the confidence of the look."""
    look = BY_FIVE.seeds.index(n) + 1
    level = seed_levels("obrien_fleming", BY_FIVE.seeds)[look - 1]
    values = np.random.default_rng(n).normal(0.3, 1, n)
    found = judge({"new": paired(values)}, BY_FIVE, look, 0.01, 1)["new"]
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
    found = judge(comparisons, BY_FIVE, 3, 0.01, 4)
    ended = {name: seen.conclusion for name, seen in found.items()}
    assert ended == {"up": "better", "down": "worse", "same": "equal", "far": "open"}
    losses = judge(comparisons, BY_FIVE, 3, 0.01, 4, better=-1)
    assert (losses["up"].conclusion, losses["down"].conclusion) == ("worse", "better")


def test_holm_at_a_look_corrects_for_the_number_of_recipes():
    """Ten positive differences pass the level of a single comparison, but not that of the smallest p of three."""
    weak = paired([0.05, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8, 0.95])
    levels = corrected_levels("obrien_fleming", BY_FIVE.seeds, 2, 3)
    alone = judge({"weak": weak}, BY_FIVE, 2, 0.0, 1)["weak"]
    assert levels[0] < alone.p < levels[2]
    together = judge({"weak": weak, "other": paired(np.tile([-1.0, 1.0], 5))}, BY_FIVE, 2, 0.0, 3)
    assert (alone.conclusion, together["weak"].conclusion) == ("better", "open")
    strong = paired(np.linspace(0.9, 1.1, 14))
    found = judge({"weak": weak, "strong": strong}, BY_FIVE, 2, 0.0, 2)
    assert (found["strong"].level, found["weak"].level) == (
        corrected_levels("obrien_fleming", BY_FIVE.seeds, 2, 2)[0],
        corrected_levels("obrien_fleming", BY_FIVE.seeds, 2, 2)[1],
    )


def test_seeds_that_do_not_vary_decide_nothing():
    found = judge({"new": paired([0.02] * 10, is_varied=False)}, BY_FIVE, 2, 0.05, 1)["new"]
    assert (found.conclusion, found.low, found.p) == ("open", None, None)
    assert outlook(found, BY_FIVE, 2, 0.05, 1).ends == 0.0


def test_the_outlook_expects_more_seeds_for_smaller_differences():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(5)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    outlooks = [
        outlook(judge({"new": paired(noise + gap)}, BY_FIVE, 1, 0.1, 1)["new"], BY_FIVE, 1, 0.1, 1)
        for gap in (1.5, 0.5)
    ]
    assert outlooks[0].seeds < outlooks[1].seeds <= 20
    assert outlooks[0].ends > 0.99 > outlooks[1].ends


@pytest.mark.parametrize("n", [3, 5, 8, 15, 18])
def test_the_smallest_p_of_a_look_is_that_of_its_tests(n):
    pairs, (a, b) = paired(np.linspace(1.0, 2.0, n)), np.random.default_rng(0).normal(0, 1e-3, (2, n))
    sides = compare(Tested(a + 1), Tested(b))
    for comparison in (pairs, sides):
        seen = judge({"new": comparison}, SeedRounds(n, 1, n + 1), 1, 0.0, 1)["new"]
        assert least_p(seen, n) == pytest.approx(comparison.least_p)


def test_the_outlook_finds_no_difference_at_looks_that_cannot():
    """Three pairs have a p of at least .25, and four of .125, so not even a huge difference ends at these looks."""
    rounds = SeedRounds(3, 1, 10, "pocock")
    seen = Seen(1.0, 0.9, 1.1, 0.01, 0.25, 0.01, "open", ["seeds"], pairs=3)
    levels = seed_levels("pocock", rounds.seeds)
    first = next(n for n, level in zip(rounds.seeds, levels, strict=True) if 2.0 ** (1 - n) < level)
    assert first > 5
    assert outlook(seen, rounds, 1, 0.0, 1).seeds == first
    never = Seen(1.0, 0.9, 1.1, 0.01, 0.01, 0.01, "open", ["examples", "seeds"], floor=0.05)
    assert outlook(never, rounds, 1, 0.0, 1).ends == 0.0


def test_looks_draw_enough_permutations_for_their_level():
    assert [samples_for(level) for level in (0.05, 0.002, 1e-6, 0.0)] == [2000, 10_000, 20_000, 20_000]
    assert 20 / (samples_for(0.004) + 1) < 0.004
