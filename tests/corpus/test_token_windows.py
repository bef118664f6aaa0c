"""Tests that batches depend only on the stream of tokens, not on its division into pieces or on the first step."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapt.corpus.sample_order import permute
from adapt.corpus.token_shards import Columns, Cut, dropped, regroup


def stream(tokens: int) -> Columns:
    """Returns a stream of different tokens, in which a document starts at every seventh token."""
    return {"tokens": np.arange(1, tokens + 1), "starts": np.arange(tokens) % 7 == 0}


def cut_up(columns: Columns, seed: int) -> list[Columns]:
    """Cuts a stream into pieces of random sizes, some empty."""
    draw = np.random.default_rng(seed)
    tokens = len(columns["tokens"])
    places = [0, *np.sort(draw.integers(0, tokens + 1, draw.integers(0, 9))).tolist(), tokens]
    return [{k: v[a:b] for k, v in columns.items()} for a, b in pairwise(places)]


def brute_force(cut: Cut, tokens: int) -> list[tuple[int, int]]:
    """Returns epoch and row of each sample, window by window.

    At the end, the rows of the last window are repeated as further epochs until the last batch is full.
    """
    rows = -(-tokens // cut.sequence_length)
    found: list[tuple[int, int]] = []
    window: list[int] = []
    for number, first in enumerate(range(0, rows, cut.window_rows)):
        count = min(cut.window_rows, rows - first)
        window = [first + row for row in permute(np.arange(count), count, cut.seed, number).tolist()]
        found += [(0, row) for row in window]
    epoch = 1
    while len(found) % cut.global_batch_size:
        again = [(epoch, row) for row in window]
        found += again[: -len(found) % cut.global_batch_size]
        epoch += 1
    return found


CUTS = st.builds(Cut, st.integers(1, 9), st.integers(1, 12), st.integers(0, 99), st.integers(1, 60))


@settings(max_examples=150)
@given(cut=CUTS, tokens=st.integers(0, 300), seed=st.integers(0, 10**6), data=st.data())
def test_batches_from_any_step(cut: Cut, tokens: int, seed: int, data: st.DataObject) -> None:
    expected = brute_force(cut, tokens)
    step = data.draw(st.integers(0, len(expected) // cut.global_batch_size + 2))
    begin = cut.start_of(step)
    assert begin <= step * cut.global_batch_size * cut.sequence_length
    pieces = cut_up({name: values[begin:] for name, values in stream(tokens).items()}, seed)
    batches = list(cut.batches(pieces, step))
    found = [pair for b in batches for pair in zip(b["epochs"].tolist(), b["rows"].tolist(), strict=True)]
    assert found == expected[step * cut.global_batch_size :]
    length, names = cut.sequence_length, ("rows", "tokens", "starts", "lengths")
    for batch in batches:
        assert batch["tokens"].shape == (cut.global_batch_size, length)
        for row, values, starts, filled in zip(*(batch[n] for n in names), strict=True):
            places = np.arange(row * length, min((row + 1) * length, tokens))
            assert values.tolist() == [*(places + 1), *[0] * (length - len(places))]
            assert starts.tolist() == [*((places % 7 == 0) | (places == places[0])), *[False] * (length - len(places))]
            assert filled == len(places)


def test_every_row_is_in_one_batch() -> None:
    batches = list(Cut(4, 6, 0, 40).batches([stream(143)], 0))
    pairs = [pair for b in batches for pair in zip(b["epochs"].tolist(), b["rows"].tolist(), strict=True)]
    assert sorted(row for epoch, row in pairs if epoch == 0) == list(range(36))
    assert len(pairs) == 36


def test_five_tokens_fill_a_batch() -> None:
    (batch,) = Cut(8, 3, 0).batches([stream(5)], 0)
    assert batch["tokens"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]] * 3
    assert batch["epochs"].tolist() == [0, 1, 2]


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 30), st.integers(0, 100))
def test_regroup_and_dropped(sizes: list[int], wanted: int, count: int) -> None:
    numbers = iter(range(1000))
    pieces = [{"tokens": np.array([next(numbers) for _ in range(size)], np.int64)} for size in sizes]
    groups = [piece["tokens"].tolist() for piece in regroup(pieces, wanted)]
    assert [token for group in groups for token in group] == list(range(sum(sizes)))
    assert all(len(group) == wanted for group in groups[:-1])
    assert all(0 < len(group) <= wanted for group in groups)
    assert [t for p in dropped(pieces, count) for t in p["tokens"].tolist()] == list(range(count, sum(sizes)))


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (512, 1), (1024, 2)])
def test_a_window_has_at_least_one_row(tokens: int, rows: int) -> None:
    assert Cut(512, 8, 0, tokens).window_rows == rows
