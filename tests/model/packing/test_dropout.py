"""Tests that `QuickDropout` has the statistics and gradients of ordinary dropout."""

import pytest
import torch
from torch import nn

from adapt.model.packing.attention import QuickDropout, quick_dropout, use_quick_dropout
from tests.model.families import plain

COUNT = 100_003


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropped_values_have_the_right_share_and_others_the_right_scale(p: float, dtype: torch.dtype):
    torch.manual_seed(0)
    found = quick_dropout(torch.ones(COUNT, dtype=dtype), p)
    kept = found != 0
    assert found[kept].unique().tolist() == [torch.tensor(1 / (1 - p), dtype=dtype).item()]
    assert 1 - kept.double().mean().item() == pytest.approx(p, abs=5 * (p / COUNT) ** 0.5)


def test_decisions_are_uncorrelated():
    """Checks the correlation at lags 1 to 8, because four neighbouring decisions come from one random number."""
    torch.manual_seed(1)
    kept = (quick_dropout(torch.ones(COUNT), 0.5) != 0).double() - 0.5
    for lag in range(1, 9):
        correlation = 4 * (kept[lag:] * kept[:-lag]).mean().item()
        assert abs(correlation) < 5 / COUNT**0.5


def test_gradients_pass_where_values_are_not_dropped():
    torch.manual_seed(2)
    values = torch.randn(7, 5, requires_grad=True)
    found = quick_dropout(values, 0.4)
    found.backward(torch.ones_like(found))
    torch.testing.assert_close(values.grad, torch.where(found != 0, 1 / 0.6, 0.0))


def test_dropout_only_depends_on_the_generator():
    values = torch.ones(50)
    torch.manual_seed(3)
    first, second = quick_dropout(values, 0.5), quick_dropout(values, 0.5)
    torch.manual_seed(3)
    assert torch.equal(quick_dropout(values, 0.5), first)
    assert not torch.equal(first, second)


def test_dropout_of_0_and_1_and_in_evaluation_mode():
    values = torch.randn(100)
    assert quick_dropout(values, 0.0) is values
    assert not quick_dropout(values, 1.0).any()
    assert torch.equal(QuickDropout(0.5).eval()(values), values)


def test_all_dropout_layers_of_a_model_are_replaced():
    model = plain("bert")
    before = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    use_quick_dropout(model)
    after = {name: module.p for name, module in model.named_modules() if isinstance(module, QuickDropout)}
    assert before == after
    assert len(after) > 3
    assert set(after.values()) == {0.1}
