"""Tests that losses computed in pieces have the values and gradients of torch's own computation."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, linear, log_softmax

from adapt.model import linear_losses
from adapt.model import linear_losses as module
from adapt.model.linear_losses import LinearScores, linear_cross_entropy, linear_divergence, pieces

ROWS, WIDTH, WORDS = 13, 6, 40


def inputs(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(ROWS, WIDTH), (WORDS, WIDTH), *([(WORDS,)] if bias else [])]
    tensors = [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]
    return tensors, torch.randint(WORDS, (ROWS,), generator=generator)


@pytest.mark.parametrize(("piece_rows", "block_rows"), [(1, 1), (5, 2), (5, 100), (100, 3), (100, 100)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("multiple", [1, 16])
def test_cross_entropy_has_torchs_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, multiple: int, bias: bool, piece_rows: int, block_rows: int
):
    # 1 is the value for CPUs. With 16, the 40 words are padded to 48, as is usual on GPUs.
    monkeypatch.setitem(module.MULTIPLE, "cpu", multiple)
    monkeypatch.setattr(module, "PIECE_BYTES", piece_rows * 4 * WORDS)
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", block_rows * 4 * WORDS)
    tensors, targets = inputs(bias, torch.float32)
    expected = cross_entropy(linear(*tensors), targets, reduction="none")
    total, losses = linear_cross_entropy(*tensors, *([] if bias else [None]), targets)
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(total, expected.sum())
    torch.testing.assert_close(
        torch.autograd.grad(total * 0.3, tensors), torch.autograd.grad(expected.sum() * 0.3, tensors)
    )


def test_weights_that_need_no_widening_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pad", None)
    tensors, targets = inputs(True, torch.float32)
    assert linear_cross_entropy(*tensors, targets)[0] > 0


def test_frozen_weights_get_no_gradient_and_inputs_still_do():
    (hidden, weight, bias), targets = inputs(True, torch.float32)
    total, _ = linear_cross_entropy(hidden, weight.detach(), bias.detach(), targets)
    total.backward()
    (expected,) = torch.autograd.grad(cross_entropy(linear(hidden, weight, bias), targets, reduction="sum"), hidden)
    torch.testing.assert_close(hidden.grad, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_measurements_compute_losses_but_no_gradients(monkeypatch: pytest.MonkeyPatch, mode: Any):
    tensors, targets = inputs(True, torch.float32)
    expected, _ = linear_cross_entropy(*tensors, targets)
    divergence = linear_divergence(LinearScores(*tensors), [LinearScores(*inputs(True, torch.float32)[0])], 2.0)

    def refuse(*_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(module, "product", refuse)
    with mode():
        total, _ = linear_cross_entropy(*tensors, targets)
        other = linear_divergence(LinearScores(*tensors), [LinearScores(*inputs(True, torch.float32)[0])], 2.0)
    torch.testing.assert_close(total, expected.detach())
    torch.testing.assert_close(other, divergence.detach())


def test_without_targets_the_loss_is_0():
    (hidden, weight, bias), _ = inputs(True, torch.float32)
    total, losses = linear_cross_entropy(hidden[:0], weight, bias, torch.empty(0, dtype=torch.int64))
    total.backward()
    assert total == 0
    assert len(losses) == 0
    assert not weight.grad.any()


def test_autocast_multiplies_in_bf16_and_keeps_scores_and_gradients_in_fp32():
    (hidden, weight, bias), targets = inputs(True, torch.float32)
    expected = cross_entropy(linear(hidden, weight, bias), targets, reduction="none")
    with torch.autocast("cpu", torch.bfloat16):
        total, losses = linear_cross_entropy(hidden, weight, bias, targets)
    assert total.dtype == losses.dtype == torch.float32
    assert not torch.equal(losses, expected)
    torch.testing.assert_close(losses, expected.detach(), rtol=2e-2, atol=2e-2)
    total.backward()
    assert weight.grad.dtype == torch.float32
    (exact,) = torch.autograd.grad(expected.sum(), weight)
    torch.testing.assert_close(weight.grad, exact, rtol=2e-2, atol=3e-2)


@pytest.mark.parametrize("rows", [8, 600])
def test_fp16_loses_no_small_gradient_and_none_overflows(rows: int):
    """Checks gradients under fp16 autocast against fp32.

    Most probabilities in a large vocabulary are too small for fp16, and sums over a frequent word could overflow.
    """
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 16, generator=draw, requires_grad=True)
    weight = torch.randn(20_000, 16, generator=draw, requires_grad=True)
    bias = torch.linspace(0, -20, 20_000, requires_grad=True)
    targets = torch.full((rows,), 7)
    hidden.data[:, 0] = 300  # adds up the gradients of all positions in one direction, so that fp16 could overflow
    weight.data[:, 0] = 0
    for each in (hidden, weight):
        each.data = each.data.half().float()
    with torch.autocast("cpu", torch.float16):
        total, _ = linear_cross_entropy(hidden, weight, bias, targets)
    found = torch.autograd.grad(total * 1e-4, (hidden, weight, bias))
    exact = cross_entropy(linear(hidden, weight, bias), targets, reduction="sum")
    expected = torch.autograd.grad(exact * 1e-4, (hidden, weight, bias))
    assert expected[1].abs().sum(1).min() < 1e-10
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        error = (one.double() - other).norm(dim=-1) / other.double().norm(dim=-1)
        assert error.max() < 1e-2  # the relative error of every row (a word or a position)


def test_gradients_of_fp16_states_are_multiplied_by_the_loss_scale_first():
    """Checks gradients that are too small for fp16 before the loss scale multiplies them."""
    (hidden, weight, bias), targets = inputs(True, torch.float32)
    narrow, small = hidden.detach().half().requires_grad_(), (weight.detach() * 1e-5).half().float()
    with torch.autocast("cpu", torch.float16):
        total, _ = linear_cross_entropy(narrow, small, bias, targets)
    (found,) = torch.autograd.grad(total * 1e5, narrow)
    exact = cross_entropy(linear(narrow.float(), small, bias), targets, reduction="sum")
    (expected,) = torch.autograd.grad(exact * 1e5, narrow)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_losses_of_certain_and_of_hopeless_predictions_are_exact():
    """Checks losses at a probability of 1, and at a probability far below the smallest positive fp32 number."""
    hidden, weight = torch.tensor([[1.0], [-1.0]]), torch.tensor([[500.0], [-500.0], [0.0]])
    _, losses = linear_cross_entropy(hidden, weight, None, torch.tensor([0, 0]))
    assert losses.tolist() == [0.0, 1000.0]


def test_pieces_cover_all_rows_and_fit():
    for rows in range(40):
        cut = pieces(rows, 1000, 4 * 1000 * 7)
        assert [row for begin, end in cut for row in range(begin, end)] == list(range(rows))
        assert all(end - begin <= 7 for begin, end in cut)
    assert pieces(3, 10**9, 4 * 1000 * 7) == [(0, 1), (1, 2), (2, 3)]  # a piece has at least one row


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
def test_divergence_has_torchs_value_and_gradients(
    monkeypatch: pytest.MonkeyPatch, temperature: float, bias: bool, rows_at_once: int
) -> None:
    monkeypatch.setattr(linear_losses, "PIECE_BYTES", 4 * V * rows_at_once)
    scores, wanted = layers(bias=bias)
    expected = by_torch(scores, wanted, temperature)
    found = linear_divergence(scores, [wanted], temperature)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(3 * found, given(scores)), torch.autograd.grad(3 * expected, given(scores)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows_at_once", [2, 100])
def test_divergence_from_several_teachers_is_that_from_the_mean_of_their_probabilities(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(linear_losses, "DIVERGENCE_PIECE_BYTES", 4 * V * rows_at_once)
    scores, first = layers()
    second = LinearScores(*(2 * each.flip(0) for each in given(first)))
    own = log_softmax(linear(*scores) / 2, 1)
    mean = torch.stack([(linear(*each) / 2).softmax(1) for each in (first, second)]).mean(0)
    expected = kl_div(own, mean, reduction="sum") * 4
    found = linear_divergence(scores, [first, second], 2.0)
    torch.testing.assert_close(found, expected)
    pairs = (torch.autograd.grad(each, given(scores)) for each in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("own", "theirs"), [(V - 3, V), (V, V - 3)])
def test_divergence_of_tables_of_different_lengths_is_that_of_their_first_rows(own: int, theirs: int) -> None:
    """Models with the same tokenizer, such as Qwen2.5 0.5B and 7B, may have different numbers of padding rows."""
    scores, wanted = layers()

    def begin(each: LinearScores, rows: int) -> LinearScores:
        assert each.bias is not None
        return LinearScores(each.states, each.weight[:rows], each.bias[:rows])

    expected = by_torch(begin(scores, V - 3), begin(wanted, V - 3), 2.0)
    found = linear_divergence(begin(scores, own), [wanted, begin(wanted, theirs)], 2.0)
    torch.testing.assert_close(found, expected)
    pairs = (torch.autograd.grad(each, given(scores)) for each in (found, expected))
    for mine, other in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_equal_scores_have_no_divergence() -> None:
    scores, _ = layers()
    alike = LinearScores(*(each.detach() for each in given(scores)))
    found = linear_divergence(scores, [alike], 2.0)
    assert found.item() == pytest.approx(0, abs=1e-5)
    assert all(each.abs().max() < 1e-5 for each in torch.autograd.grad(found, given(scores)))


def test_without_rows_the_divergence_is_0() -> None:
    scores, wanted = layers(rows=0)
    found = linear_divergence(scores, [wanted], 2.0)
    assert found.item() == 0
    assert all(not each.any() for each in torch.autograd.grad(found, given(scores)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_divergence_in_low_precision_is_close(dtype: torch.dtype) -> None:
    scores, wanted = layers()
    with torch.autocast("cpu", dtype):
        found = linear_divergence(scores, [wanted], 2.0)
    expected = by_torch(scores, wanted, 2.0)
    assert found.item() == pytest.approx(expected.item(), rel=0.05)
    one, other = (torch.autograd.grad(each, scores.weight)[0] for each in (found, expected))
    assert (one - other).norm() < 0.05 * other.norm()
