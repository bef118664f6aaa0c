"""Tests on CPUs that the GPU path of attention gives the CPU's results. A CPU function replaces the GPU kernel."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from adapt.model.packing import attention
from adapt.model.sparse_prediction import predict_at
from tests.model.families import FAMILIES, documents, packed, ready

LENGTHS = 5, 1, 17, 16, 30, 2


def kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """Computes attention within documents from explicit scores. Inputs and output are [tokens, heads, width].

    `window_size` is the number of visible tokens to the left and to the right of a token, or -1 for all.
    """
    assert all(states.is_contiguous() for states in (query, key, value))
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert max(cu_seq_q.diff().max(), cu_seq_k.diff().max()) <= max_q == max_k
    groups = query.shape[1] // key.shape[1]
    assert enable_gqa == (groups > 1)
    outputs = []
    for begin, end in zip(cu_seq_q.tolist(), cu_seq_q[1:].tolist(), strict=False):
        rows = [states[begin:end].transpose(0, 1) for states in (query, key, value)]
        queries, keys, values = rows[0], *(each.repeat_interleave(groups, 0) for each in rows[1:])
        right = torch.arange(end - begin) - torch.arange(end - begin)[:, None]
        left_reach, right_reach = window_size
        hidden = (right > right_reach) if right_reach >= 0 else torch.zeros_like(right, dtype=torch.bool)
        hidden |= (-right > left_reach) if left_reach >= 0 else torch.zeros_like(hidden)
        scores = queries @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        outputs.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1))
    return torch.cat(outputs)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes attention take the GPU path and replaces torch's kernel by the stand-in."""

    def chosen(query: Tensor, key: Tensor, value: Tensor, documents: Any, scaling: Any, _: float, *rest: Any) -> Tensor:
        return attention._variable_length(query, key, value, documents, scaling, *rest)

    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "_by_bucket", chosen)


def test_the_stand_in_has_the_signature_of_torchs_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ours, theirs = (inspect.signature(each).parameters for each in (kernel, varlen.varlen_attn))
    positional = [name for name, each in theirs.items() if each.kind != inspect.Parameter.KEYWORD_ONLY]
    assert positional == [name for name, each in ours.items() if each.kind != inspect.Parameter.KEYWORD_ONLY]
    assert ours.keys() <= theirs.keys()
    assert all(each.default == theirs[name].default for name, each in ours.items())


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_outputs_and_gradients_are_those_of_buckets(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None, key_heads: int
) -> None:
    where = packed(documents(*LENGTHS), sum(LENGTHS)).documents
    generator = torch.Generator().manual_seed(2)
    shapes = [(1, heads, sum(LENGTHS), 8) for heads in (4, key_heads, key_heads)]
    states = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    upstream = torch.randn(1, sum(LENGTHS), 4, 8, generator=generator)
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
