"""Holm's correction by hand, by its definition, and against Bonferroni's."""

import numpy as np
import pytest

from adapt.statistics.holm import holm


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # the smallest four times, the next three times ...
        ([0.02], [0.02]),
        ([0.5, 0.9, 0.8], [1.0, 1.0, 1.0]),
        ([], []),
    ],
)
def test_by_hand(p, adjusted):
    assert holm(p) == pytest.approx(adjusted)


def test_rejects_what_stepping_down_rejects():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.beta(0.3, 3, rng.integers(1, 8))
        rejected = np.zeros(len(p), bool)
        for step, place in enumerate(np.argsort(p)):  # the definition: stop at the first that is not below
            if p[place] > 0.05 / (len(p) - step):
                break
            rejected[place] = True
        assert (np.array(holm(p)) <= 0.05).tolist() == rejected.tolist()
        assert (np.array(holm(p)) <= np.clip(p * len(p), 0, 1) + 1e-12).all()
