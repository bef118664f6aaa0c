"""Tests that gates have the same effect with our engine as without it, with sharding and compiled layers."""

from collections.abc import Callable

import pytest
import torch

from tests.train.gated import plainly, through_engine
from tests.train.ranks import Ranks


@pytest.mark.parametrize(
    ("zero_stage", "compiled"), [(0, False), (3, False), pytest.param(3, True, marks=pytest.mark.slow)]
)
def test_gates_and_their_gradients_on_two_ranks(ranks: Callable[[int], Ranks], zero_stage: int, compiled: bool) -> None:
    for rank, (loss, gradients, after) in enumerate(ranks(2).run(through_engine, zero_stage, compiled)):
        expected_loss, expected, expected_after = plainly(rank, 2)
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert after == pytest.approx(expected_after, rel=1e-5)
        assert abs(loss - after) > 0.1
        assert gradients.keys() == expected.keys()
        for kind, each in expected.items():
            assert each.any()
            torch.testing.assert_close(gradients[kind], each, atol=1e-5, rtol=1e-4)
