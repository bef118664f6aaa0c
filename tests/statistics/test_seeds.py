"""Tests means and intervals over seeds against scipy."""

import numpy as np
import pytest
from scipy import stats

from adapt.statistics.seeds import spread


def test_interval_is_scipys():
    scores = [0.61, 0.64, 0.58, 0.70, 0.66]
    found = spread(scores)
    low, high = stats.ttest_1samp(scores, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.mean, found.deviation) == pytest.approx((np.mean(scores), stats.tstd(scores)))
    assert found.seeds == 5


def test_one_seed_has_no_interval():
    found = spread([0.5])
    assert (found.mean, found.deviation, found.low, found.high) == (0.5, None, None, None)
