"""Compares the formulas of HAT with numbers computed by hand, with autograd, and with the published formulas."""

import math
from itertools import pairwise

import pytest
import torch

from adapt.method.hat.mask_learning import compensated, sparsity_gradient, steepness_at
from adapt.model.additions.masks import MOST, UnitMask

HERE = torch.device("cpu")


def test_masks_get_steeper_from_the_first_step_to_the_last() -> None:
    found = [steepness_at(step, 5, 400.0) for step in range(5)]
    assert found[0] == 1 / 400
    assert found[-1] == pytest.approx(400.0)
    assert [later - earlier for earlier, later in pairwise(found)] == pytest.approx([(400 - 1 / 400) / 4] * 4)
    assert steepness_at(0, 1, 400.0) == 400.0


def test_the_sparsity_gradient_equals_autograd() -> None:
    draw = torch.Generator().manual_seed(0)
    embedding = torch.randn(7, generator=draw, requires_grad=True)
    before = torch.rand(7, generator=draw)
    mask = torch.sigmoid(3.0 * embedding)
    (expected,) = torch.autograd.grad((mask * (1 - before)).sum() / (1 - before).sum(), embedding)
    found = sparsity_gradient(embedding.detach(), 1 - before, float((1 - before).sum()), 3.0)
    torch.testing.assert_close(found, expected)


def test_compensation_undoes_the_slope_of_the_sigmoid() -> None:
    """Checks for every steepness that the compensated gradient is s_max times the gradient of sigma(e) (equation 4)."""
    embedding = torch.tensor([-2.0, -0.3, 0.0, 0.7, 1.5], requires_grad=True)
    expected = 400.0 * torch.autograd.grad(torch.sigmoid(embedding).sum(), embedding)[0]
    for steepness in (1 / 400, 0.5, 3.0):
        (given,) = torch.autograd.grad(torch.sigmoid(steepness * embedding).sum(), embedding)
        torch.testing.assert_close(
            compensated(given, embedding.detach(), steepness, 400.0), expected, rtol=1e-5, atol=1e-3
        )


def test_the_hyperbolic_cosine_is_bounded() -> None:
    found = compensated(torch.ones(1), torch.tensor([2.0]), 400.0, 400.0)
    assert found.item() == pytest.approx((math.cosh(50) + 1) / (math.cosh(2) + 1), rel=1e-4)


def test_embeddings_stay_within_their_bounds() -> None:
    """Checks a mask's embedding beyond a bound: it acts like the bound, is not pushed further, and can move back."""
    beyond = torch.tensor([MOST + 1, -MOST - 1])
    assert not compensated(torch.tensor([-1.0, 1.0]), beyond, 1.0, 400.0).any()
    assert compensated(torch.tensor([1.0, -1.0]), beyond, 1.0, 400.0).sign().tolist() == [1, -1]
    mask = UnitMask(2, 400.0, False, False, HERE)
    mask.embedding.data, mask.steepness = beyond, 0.1
    mask(torch.ones(3, 2)).sum().backward()
    torch.testing.assert_close(mask(torch.ones(1, 2))[0], torch.sigmoid(0.1 * torch.tensor([MOST, -MOST])))
    assert mask.embedding.grad is not None
    assert mask.embedding.grad.all()


def test_a_learnt_mask_is_0_or_1() -> None:
    embedding = torch.tensor([-1.0, -0.1, 0.1, 1.0])
    for is_hard in (False, True):
        mask = UnitMask(4, 400.0, is_hard, False, HERE)
        mask.embedding.data = embedding
        assert mask.values().tolist() == pytest.approx([0, 0, 1, 1], abs=1e-15)
    wide = mask(torch.arange(1.0, 9.0)[None])  # each of the 4 units gates two of the 8 inputs
    assert wide.tolist() == [[0, 0, 0, 0, 5, 6, 7, 8]]
