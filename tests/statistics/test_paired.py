"""Paired differences against scipy."""

import numpy as np
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


@pytest.mark.parametrize("differences", [[0.25] * 3, [0.3, 0.1 + 0.2, 0.3], [-0.1, -0.1]])
def test_pairs_that_all_differ_alike_prove_no_more_than_their_signs(differences):
    found = paired(differences)
    assert found.p == found.least_p == 2.0 ** (1 - len(differences))
    assert (found.low, found.high, found.error) == (None, None, None)


@pytest.mark.parametrize("differences", [[0.0] * 4, [0.0, 1e-17, -1e-17]])
def test_pairs_that_do_not_differ_have_a_p_of_1(differences):
    assert paired(differences).p == 1.0


def test_p_is_never_below_that_of_a_sign_flip_test():
    """All of one sign and hardly apart: t alone would say p < .001."""
    differences = [0.050, 0.051, 0.049, 0.050, 0.052]
    test = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    found = paired(differences)
    assert stats.ttest_1samp(differences, 0).pvalue < 0.001
    assert found.p == pytest.approx(test.pvalue) == pytest.approx(1 / 16)
    assert found.low is not None
