"""Tests on CPUs that the GPU path of attention gives the CPU's results. A CPU function replaces the GPU operator."""

import inspect

import pytest
import torch
from torch import Tensor

from adapt.model.packing import attention, flash
from adapt.model.sparse_prediction import predict_at
from tests.model.families import FAMILIES, documents, packed, ready

LENGTHS = 5, 1, 17, 16, 30, 2


def operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, ...]:
    """Computes attention within documents from explicit scores. Inputs and output are [tokens, heads, width].

    The sizes of a window are the numbers of visible tokens to the left and to the right of a token, or -1 for all.
    """
    assert all(states.is_contiguous() and states.shape[-1] % 8 == 0 for states in (query, key, value))
    assert cum_seq_q.dtype == cum_seq_k.dtype == torch.int32
    assert max(cum_seq_q.diff().max(), cum_seq_k.diff().max()) <= max_q == max_k
    assert scale is not None
    assert window_size_left is not None
    assert window_size_right is not None
    assert not dropout_p
    assert not return_debug_mask
    groups = query.shape[1] // key.shape[1]
    outputs = []
    for begin, end in zip(cum_seq_q.tolist(), cum_seq_q[1:].tolist(), strict=False):
        rows = [states[begin:end].transpose(0, 1) for states in (query, key, value)]
        queries, keys, values = rows[0], *(each.repeat_interleave(groups, 0) for each in rows[1:])
        right = torch.arange(end - begin) - torch.arange(end - begin)[:, None]
        hidden = (right > window_size_right) if window_size_right >= 0 else torch.zeros_like(right, dtype=torch.bool)
        hidden |= (-right > window_size_left) if window_size_left >= 0 else torch.zeros_like(hidden)
        assert not is_causal or hidden[right > 0].all()
        scores = queries @ keys.mT * scale
        outputs.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1))
    return torch.cat(outputs), query.new_zeros(0)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes attention take the GPU path and replaces torch's operator by the stand-in."""
    monkeypatch.setattr(flash, "attention_operator", operator)
    monkeypatch.setattr(attention, "attend_by_bucket", flash.flash_attention)


def test_the_stand_in_has_the_signature_of_torchs_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ours = inspect.signature(operator).parameters
    theirs = {each.name: each for each in flash.attention_operator.default._schema.arguments}
    positional = [name for name, each in theirs.items() if not each.kwarg_only]
    assert positional == [name for name, each in ours.items() if each.kind != inspect.Parameter.KEYWORD_ONLY]
    assert ours.keys() <= theirs.keys()
    assert all(each.has_default_value() for name, each in theirs.items() if name not in ours)


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("width", [8, 12])
def test_outputs_and_gradients_are_those_of_buckets(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None, key_heads: int, width: int
) -> None:
    where = packed(documents(*LENGTHS), sum(LENGTHS)).documents
    generator = torch.Generator().manual_seed(2)
    shapes = [(1, heads, sum(LENGTHS), width) for heads in (4, key_heads, key_heads)]
    states = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    upstream = torch.randn(1, sum(LENGTHS), 4, width, generator=generator)
    layer = torch.nn.Module()
    layer.is_causal = causal  # type: ignore[assignment]

    def computed() -> tuple[Tensor, tuple[Tensor, ...]]:
        found, _ = attention.attention(layer, *states, None, documents=where, sliding_window=window, scaling=0.3)
        return found, torch.autograd.grad(found, states, upstream)

    by_kernel = computed()
    monkeypatch.undo()
    torch.testing.assert_close(by_kernel, computed())


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3"])
def test_every_family_has_the_same_logits_on_both_paths(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    model, together = ready(family), packed(documents(*LENGTHS), sum(LENGTHS))
    places = torch.arange(together.tokens)
    by_kernel = predict_at(model, together, places)
    monkeypatch.undo()
    expected = predict_at(model, together, places)
    torch.testing.assert_close(by_kernel, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1
