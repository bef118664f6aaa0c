"""Paired differences against scipy."""

import pytest
from scipy import stats

from adapt.statistics.paired import paired


def test_interval_and_p_are_those_of_scipys_t_test():
    mine, theirs = [0.71, 0.74, 0.69, 0.75, 0.72, 0.70], [0.70, 0.71, 0.70, 0.72, 0.70, 0.69]
    found = paired([a - b for a, b in zip(mine, theirs, strict=True)])
    test = stats.ttest_rel(mine, theirs)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.error == pytest.approx(found.difference / test.statistic)


def test_one_pair_says_nothing_of_chance():
    found = paired([0.02])
    assert (found.difference, found.low, found.high, found.error, found.p) == (0.02, None, None, None, None)


@pytest.mark.parametrize(("difference", "p"), [(0.0, 1.0), (0.25, 0.0)])
def test_pairs_that_all_differ_alike(difference, p):
    assert paired([difference] * 3).p == p
