"""Tests that packed documents give the results of separate documents, in attention and in seven architectures."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from adapt.model.packing import attention
from adapt.model.sparse_prediction import predict_at
from tests.model.families import FAMILIES, documents, packed, plain, ready

LENGTHS = 3, 7, 1, 20, 40, 33, 33
ROW = sum(LENGTHS) + 5


class Layer(torch.nn.Module):
    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_packed_documents_are_those_of_separate_ones(family: str):
    texts = documents(*LENGTHS)
    model = plain(family)
    alone = torch.cat([model(input_ids=text[None]).logits[0] for text in texts])
    together = predict_at(ready(family), packed(texts, ROW), torch.arange(len(alone)))
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    assert alone.std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_does_not_see_its_neighbours(family: str):
    texts = documents(*LENGTHS)
    model = ready(family)
    everywhere = torch.arange(sum(LENGTHS))
    before = predict_at(model, packed(texts, ROW), everywhere)
    texts[3] = texts[3].flip(0)
    after = predict_at(model, packed(texts, ROW), everywhere)
    begin, end = sum(LENGTHS[:3]), sum(LENGTHS[:4])
    changed = (before != after).any(1)
    assert changed[begin:end].any()
    assert not changed[:begin].any()
    assert not changed[end:].any()


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, window: int | None
) -> torch.Tensor:
    """Computes attention within one document from explicit scores. Inputs and output are [heads, length, width]."""
    groups = len(query) // len(key)
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    places = torch.arange(query.shape[1])
    apart = places[:, None] - places
    hidden = torch.zeros_like(apart, dtype=torch.bool)
    if causal:
        hidden |= apart < 0
    if window is not None:
        hidden |= apart.abs() >= window
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("long", [attention.LONG, 10], ids=["own", "torch's"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_outputs_and_gradients_are_those_of_separate_documents(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None, key_heads: int, long: int
):
    monkeypatch.setattr(attention, "LONG", long)
    lengths = [5, 1, 17, 16, 30, 2]
    where = packed(documents(*lengths), sum(lengths)).documents
    generator = torch.Generator().manual_seed(2)
    shapes = [(1, heads, sum(lengths), 8) for heads in (4, key_heads, key_heads)]
    states = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    found, _ = attention.attention(Layer(causal), *states, None, documents=where, sliding_window=window)
    pieces = zip(*(each[0].split(lengths, 1) for each in states), strict=True)
    expected = torch.cat([reference(*piece, causal, window) for piece in pieces], 1).transpose(0, 1)[None]
    torch.testing.assert_close(found, expected)

    upstream = torch.randn(found.shape, generator=generator)
    torch.testing.assert_close(
        torch.autograd.grad(found, states, upstream), torch.autograd.grad(expected, states, upstream)
    )


def test_dropout_leaves_the_mean_and_drops_the_share():
    """Checks dropout of attention weights on 4000 documents of one token with value 1.

    Each output is the token's only attention weight after dropout: 0 with probability 0.25, else 1 / 0.75. The mean is
    1.
    """
    # 4000 documents of one token, whose only attention weight is 1
    where = packed(documents(*[1] * 4000), 4000).documents
    ones = torch.ones(1, 1, 4000, 4)
    torch.manual_seed(0)
    found, _ = attention.attention(Layer(False), ones, ones, ones, None, dropout=0.25, documents=where)
    kept = found[0, :, 0, 0]
    assert kept.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (kept == 0).float().mean().item() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 4000) ** 0.5)


def test_calls_without_documents_use_transformers_attention():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 6, 4, generator=generator) for _ in range(3))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], dtype=torch.bool)[:, None, None]
    found, _ = attention.attention(Layer(False), query, key, value, mask)
    torch.testing.assert_close(found, scaled_dot_product_attention(query, key, value, mask).transpose(1, 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_results_of_ordinary_padded_batches_do_not_change(family: str):
    texts = documents(9, 4)
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=1)
    mask = ids != 1
    with torch.no_grad():
        expected = plain(family)(input_ids=ids, attention_mask=mask.long()).logits[mask]
        found = ready(family)(input_ids=ids, attention_mask=mask.long()).logits[mask]
    torch.testing.assert_close(found, expected)
