"""Attention on CPUs, forward and backward, against autograd in double precision."""

import pytest
import torch

from adapt.model.packing.attend import attend
from adapt.model.packing.dropout import decide, dropped

SCALE, P = 0.3, 0.4
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("length", [1, 20, 40, 64])  # softmax takes other ways for bf16 on rows of such lengths
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_outputs_and_gradients_are_those_of_the_formula(
    dtype: torch.dtype, length: int, is_masked: bool, dropout: float
):
    generator = torch.Generator().manual_seed(1)
    states = [torch.randn(3, 2, length, 8, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    lengths = torch.tensor([length, max(1, length - 3), max(1, length // 2)])
    mask = (torch.arange(length) < lengths[:, None])[:, None, None] if is_masked else None
    torch.manual_seed(5)
    found = attend(*states, mask, dropout, SCALE)
    torch.manual_seed(5)
    weights = (6, length, length)
    ones = torch.ones(weights, dtype=dtype)
    kept = dropped(ones, decide(weights, dropout, dtype), dropout) != 0 if dropout else ones

    query, key, value = exact = [each.detach().double().requires_grad_() for each in states]
    scores = query @ key.mT * SCALE
    shares = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
    expected = (shares * kept.view(shares.shape) / (1 - dropout)) @ value
    upstream = torch.randn(found.shape, generator=generator)
    gradients = torch.autograd.grad(found, states, upstream.to(dtype))
    wanted = torch.autograd.grad(expected, exact, upstream.to(dtype).double())
    for ours, theirs in zip((found, *gradients), (expected, *wanted), strict=True):
        torch.testing.assert_close(
            ours.double(),
            theirs,
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype] * theirs.std().item() if length > 1 else TOLERANCE[dtype],
        )
