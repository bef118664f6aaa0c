"""Tests the layout of packed sequences, and its buckets: groups of documents that are padded to the same length."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapt.model.packing.packed import Documents, Packed


def test_rows_are_joined_without_padding_and_positions_restart():
    tokens = torch.tensor([[11, 12, 13, 14], [15, 16, 0, 0]])
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    starts = torch.tensor([[1, 0, 0, 1], [1, 0, 0, 0]], dtype=torch.bool)
    packed = Packed.of(tokens, real, starts)
    assert packed.input_ids.tolist() == [[11, 12, 13, 14, 15, 16]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert packed.documents.cumulative.tolist() == [0, 3, 4, 6]
    assert packed.documents.longest == 4


def test_a_single_document_can_be_packed():
    packed = Packed.single(torch.tensor([7, 8, 9]))
    assert packed.position_ids.tolist() == [[0, 1, 2]]
    assert packed.documents.cumulative.tolist() == [0, 3]


def of_lengths(*lengths: int) -> Packed:
    """Packs documents of the given lengths into one row. The token ids are 10, 11, 12 and so on."""
    starts = torch.zeros(1, sum(lengths), dtype=torch.bool)
    starts[0, torch.tensor([0, *lengths[:-1]]).cumsum(0)] = True
    return Packed.of(10 + torch.arange(sum(lengths))[None], torch.ones_like(starts), starts)


def test_joined_documents_can_be_selected_again():
    one, other = of_lengths(2, 1), of_lengths(3)
    both = Packed.joined(one, other, one)
    assert both.input_ids.tolist() == [[10, 11, 12, 10, 11, 12, 10, 11, 12]]
    assert both.position_ids.tolist() == [[0, 1, 0, 0, 1, 2, 0, 1, 0]]
    assert both.documents.cumulative.tolist() == [0, 2, 3, 6, 8, 9]
    assert both.documents.cumulative.dtype == torch.int32
    assert (both.tokens, len(both.documents), both.documents.longest) == (9, 5, 3)
    some = both.only(torch.tensor([0, 2, 4]))
    assert some.input_ids.tolist() == [[10, 11, 10, 11, 12, 12]]
    assert some.position_ids.tolist() == [[0, 1, 0, 1, 2, 0]]
    assert some.documents.cumulative.tolist() == [0, 2, 5, 6]
    assert some.documents.cumulative.dtype == torch.int32
    assert both.only(torch.arange(5)) is both
    nothing = both.only(torch.tensor([], dtype=torch.int64))
    assert (nothing.tokens, len(nothing.documents)) == (0, 0)
    assert Packed.joined(both, nothing).documents.cumulative.tolist() == both.documents.cumulative.tolist()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=20))
def test_buckets_have_each_token_once_and_each_document_in_one_row(lengths: list[int]):
    ends = torch.tensor([0, *lengths]).cumsum(0)
    documents = Documents(ends.int(), max(lengths))
    layout = documents.layout
    there, back = layout.there, layout.back
    assert there[back].tolist() == list(range(sum(lengths)))  # indexing with `back` restores the order of tokens
    found, begin = [], 0
    for bucket in layout.buckets:
        end = begin + bucket.rows * bucket.length
        lines = there[begin:end].view(bucket.rows, bucket.length)
        real = bucket.real if bucket.real is not None else torch.ones_like(lines, dtype=torch.bool)
        found += [line[inside].tolist() for line, inside in zip(lines, real, strict=True)]
        assert real.sum(1).max() == bucket.length  # each bucket is as wide as its longest document
        begin = end
    assert begin == len(there)
    assert sorted(found) == [list(range(a, b)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    filling = set(range(len(there))) - set(back.tolist())
    assert (set() if layout.filling is None else set(layout.filling.tolist())) == filling
