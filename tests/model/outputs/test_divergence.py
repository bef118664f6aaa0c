"""The divergence of two layers' scores, and its gradients, against torch's own on whole scores."""

from typing import Any

import pytest
import torch
from torch.nn.functional import kl_div, linear, log_softmax

from adapt.model.outputs import divergence
from adapt.model.outputs.divergence import LinearScores, linear_divergence

T, H, V = 7, 5, 11


def layers(rows: int = T, bias: bool = True) -> tuple[LinearScores, LinearScores]:
    draw = torch.Generator().manual_seed(0)

    def made(width: int, trained: bool) -> LinearScores:
        shapes = (rows, width), (V, width), (V,)
        tensors = [torch.randn(shape, generator=draw).requires_grad_(trained) for shape in shapes]
        return LinearScores(tensors[0], tensors[1], tensors[2] if bias else None)

    return made(H, True), made(H + 2, False)


def by_torch(scores: LinearScores, wanted: LinearScores, temperature: float) -> Any:
    own, theirs = (log_softmax(linear(*each) / temperature, 1) for each in (scores, wanted))
    return kl_div(own, theirs, reduction="sum", log_target=True) * temperature**2


def given(scores: LinearScores) -> list[torch.Tensor]:
    return [each for each in scores if each is not None]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows_at_once", [2, 100])
def test_value_and_gradients(
    monkeypatch: pytest.MonkeyPatch, temperature: float, bias: bool, rows_at_once: int
) -> None:
    monkeypatch.setattr(divergence, "PIECE_BYTES", 4 * V * rows_at_once)
    scores, wanted = layers(bias=bias)
    expected = by_torch(scores, wanted, temperature)
    found = linear_divergence(scores, wanted, temperature)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(3 * found, given(scores)), torch.autograd.grad(3 * expected, given(scores)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_is_alike_is_not_apart() -> None:
    scores, _ = layers()
    alike = LinearScores(*(each.detach() for each in given(scores)))
    found = linear_divergence(scores, alike, 2.0)
    assert found.item() == pytest.approx(0, abs=1e-5)
    assert all(each.abs().max() < 1e-5 for each in torch.autograd.grad(found, given(scores)))


def test_rows_may_be_none() -> None:
    scores, wanted = layers(rows=0)
    found = linear_divergence(scores, wanted, 2.0)
    assert found.item() == 0
    assert all(not each.any() for each in torch.autograd.grad(found, given(scores)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_low_precision_it_is_near(dtype: torch.dtype) -> None:
    scores, wanted = layers()
    with torch.autocast("cpu", dtype):
        found = linear_divergence(scores, wanted, 2.0)
    expected = by_torch(scores, wanted, 2.0)
    assert found.item() == pytest.approx(expected.item(), rel=0.05)
    one, other = (torch.autograd.grad(each, scores.weight)[0] for each in (found, expected))
    assert (one - other).norm() < 0.05 * other.norm()
