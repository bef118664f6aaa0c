"""Tests models that compute documents as padded rows: how rows are grouped, the measured padding, and the hooks."""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapt.model.architecture import Way
from adapt.model.packing.packed import Documents, Packed
from adapt.model.packing.padded import (
    PASS_TOKENS,
    ROW_TOKENS,
    DocumentRows,
    document_rows,
    padding_of,
    rectangles,
    shared_rows,
)
from adapt.model.sparse_prediction import loss_at, losses_at
from adapt.model.states import last_hidden_state
from adapt.support.errors import ModelError
from tests.model.families import documents, plain, ready


def cheapest(lengths: list[int], cost: int) -> int:
    """Returns the smallest cost of all divisions into groups, by trying each of them."""
    ordered, costs = sorted(lengths), []
    for cuts in range(2 ** (len(ordered) - 1)):
        ends = [0, *(place for place in range(1, len(ordered)) if cuts >> (place - 1) & 1), len(ordered)]
        costs.append(sum((end - begin) * ordered[end - 1] + cost for begin, end in pairwise(ends)))
    return min(costs)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 30))
def test_no_other_rectangles_cost_less(lengths: list[int], cost: int):
    groups = rectangles(torch.tensor(lengths), cost)
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    found = sum(len(group) * max(lengths[number] for number in group) + cost for group in groups)
    assert found == cheapest(lengths, cost)


def test_rows_of_exactly_the_same_length_have_no_padding():
    groups = rectangles(torch.tensor([5, 3, 5, 2, 3, 5]), 0)
    assert [group.tolist() for group in groups] == [[3], [1, 4], [0, 2, 5]]


def of_lengths(*lengths: int) -> Documents:
    return Documents(torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths))


def test_padding_is_counted_over_all_micro_batches():
    rows = DocumentRows()
    rows.compute_at_once()
    padding = rows.padding([of_lengths(3, 1), of_lengths(4, 4, 4)])
    assert padding.share == pytest.approx(2 / 18)
    assert str(padding) == "11.1% of the computed positions are padding, in 1.0 passes per micro-batch"


@pytest.mark.parametrize("way", ["shared rows", "padded", "by length"])
def test_forecast_padding_is_the_measured_padding(way: Way):
    passes = [[3, 100, 1, 7, 100], [200, 4, 4, 4]]
    rows = DocumentRows()
    rows.way = way
    measured = rows.padding(of_lengths(*lengths) for lengths in passes)
    assert padding_of(passes, way, "cpu") == measured
    assert (measured.share > 0) == (way != "by length")


def test_forecast_padding_at_once_is_the_measured_padding():
    passes, rows = [[3, 100, 1, 7, 100], [200, 4, 4, 4]], DocumentRows()
    rows.compute_at_once()
    assert padding_of(passes, "padded", "cpu", at_once=True) == rows.padding(of_lengths(*each) for each in passes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=60))
def test_shared_rows_have_each_document_once_and_no_two_rows_fit_into_one(lengths: list[int]):
    rows = shared_rows(lengths)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    filled = sorted(sum(lengths[number] for number in row) for row in rows)
    length = max(ROW_TOKENS, *lengths)
    assert filled[-1] <= length
    assert len(rows) == 1 or filled[0] + filled[1] > length


@pytest.mark.parametrize("absolute", [False, True])
def test_documents_in_a_shared_row_have_the_states_of_single_documents(absolute: bool):
    model, texts = ready("deberta-v2", position_biased_input=absolute), documents(9, 3, 30, 4, 9, 120)
    rows = document_rows(model)
    assert rows
    assert rows.way == "shared rows"
    packed = Packed.joined(*map(Packed.single, texts))
    (bucket,) = rows.layout(packed.documents).buckets
    assert bucket.rows == 2
    base = plain("deberta-v2", position_biased_input=absolute).base_model
    expected = torch.cat([base(input_ids=text[None]).last_hidden_state[0] for text in texts])
    torch.testing.assert_close(last_hidden_state(model, packed), expected, rtol=1e-4, atol=1e-5)


def test_zero_3_is_refused_if_padding_changes_outputs():
    rows = document_rows(ready("convbert"))
    assert rows
    with pytest.raises(ModelError, match="which is impossible at ZeRO stage 3"):
        rows.compute_at_once()


@pytest.mark.parametrize("at_once", [False, True])
def test_one_pass_and_several_passes_give_the_states_of_each_document(at_once: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PASS_TOKENS, "cpu", 4)
    model, texts = ready("deberta-v2"), documents(9, 3, 30, 4, 9)
    rows = document_rows(model)
    assert rows
    rows.way = "padded"
    if at_once:
        rows.compute_at_once()
    packed = Packed.joined(*map(Packed.single, texts))
    assert len(rows.layout(packed.documents).buckets) == (1 if at_once else 3)
    base = plain("deberta-v2").base_model
    expected = torch.cat([base(input_ids=text[None]).last_hidden_state[0] for text in texts])
    torch.testing.assert_close(last_hidden_state(model, packed), expected, rtol=1e-4, atol=1e-5)
    segments = (torch.arange(packed.tokens) % 2)[None]
    second = torch.cat(
        [
            base(input_ids=text[None], token_type_ids=part[None]).last_hidden_state[0]
            for text, part in zip(texts, segments[0].split([len(text) for text in texts]), strict=True)
        ]
    )
    torch.testing.assert_close(last_hidden_state(model, packed, segments), second, rtol=1e-4, atol=1e-5)


def test_ordinary_calls_do_not_change_even_after_an_error_or_in_a_copy():
    model = ready("deberta-v2")
    texts = documents(4, 7)
    packed, positions = Packed.joined(*map(Packed.single, texts)), torch.arange(11)
    losses = losses_at(model, packed, positions, torch.cat(texts))
    with pytest.raises(RuntimeError):
        loss_at(model, packed, positions[:5], torch.cat(texts))
    rows = torch.stack([texts[1], texts[1]])
    torch.testing.assert_close(model(input_ids=rows).logits, plain("deberta-v2")(input_ids=rows).logits)
    other = copy.deepcopy(model)
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.zero_()
    torch.testing.assert_close(losses_at(other, packed, positions, torch.cat(texts)), losses)
