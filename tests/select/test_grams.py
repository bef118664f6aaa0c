"""Tests of hashed n-grams, and of grouping texts into chunks."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.select.gram_regression import gram_matrix, gram_rows
from adapt.select.grams import MOST_CHARACTERS, MOST_TEXTS, chunks, gram_chunks, gram_counts, grams

TEXTS = ["The model, the loss.", "", "x", "the model", "...", "The MODEL the loss the model"]
MASK, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15


def mixed(value: int) -> int:
    """Computes SplitMix64's finalizer with Python integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def hash_of(word: str) -> int:
    """Computes the hash of a word of at most eight bytes, as `adapt.corpus.shingles` does."""
    return mixed(int.from_bytes(word.encode(), "little"))


def bucket(run: tuple[str, ...], buckets: int) -> int:
    value = len(run)
    for word in run:
        value = (value * GOLDEN + hash_of(word)) & MASK
    return (mixed(value) >> 32) * buckets >> 32


def counted(text: str, longest: int, buckets: int) -> Counter[int]:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    runs = [tuple(words[n : n + size]) for size in range(1, longest + 1) for n in range(len(words) - size + 1)]
    return Counter(bucket(run, buckets) for run in runs)


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_grams_are_the_runs_of_words_of_each_text_by_itself(longest: int) -> None:
    found = grams(TEXTS, longest, 50)
    assert found.texts == len(TEXTS)
    for place, text in enumerate(TEXTS):
        assert Counter(found.buckets[found.owners == place].tolist()) == counted(text, longest, 50)
    assert found.sizes().tolist() == [counted(text, longest, 50).total() for text in TEXTS]


def test_sums_and_matrix_are_those_of_the_counts() -> None:
    weights = np.random.default_rng(0).normal(size=50)
    found = grams(TEXTS, 2, 50)
    dense = np.zeros((len(TEXTS), 50))
    for place, text in enumerate(TEXTS):
        for each, count in counted(text, 2, 50).items():
            dense[place, each] = count
    assert found.sums(weights) == pytest.approx(dense @ weights)
    norms = np.linalg.norm(dense, axis=1, keepdims=True)
    assert gram_rows(found, 50).toarray() == pytest.approx(dense / np.where(norms, norms, 1))


def test_a_stream_of_texts_is_counted_in_chunks() -> None:
    texts = [f"text {number % 7} of many" for number in range(2 * MOST_TEXTS + 3)]
    assert [chunk.texts for chunk in gram_chunks(iter(texts), 2, 99)] == [MOST_TEXTS, MOST_TEXTS, 3]
    total: Counter[int] = Counter()
    for text in texts:
        total += counted(text, 2, 99)
    assert gram_counts(iter(texts), 2, 99).tolist() == [total[number] for number in range(99)]
    assert gram_counts([], 2, 9).tolist() == [0.0] * 9


def test_the_matrix_of_many_texts_is_that_of_all_at_once() -> None:
    texts = [f"text {number % 7} of many {number}" for number in range(2 * MOST_TEXTS + 3)]
    found = gram_matrix(texts, 2, 99)
    assert (found != gram_rows(grams(texts, 2, 99), 99)).nnz == 0
    assert gram_matrix([], 2, 99).shape == (0, 99)


@given(
    st.sampled_from([3 * MOST_CHARACTERS, MOST_CHARACTERS // 3]).flatmap(lambda most: st.lists(st.integers(0, most)))
)
def test_chunks_contain_all_items_and_are_as_full_as_possible(sizes: list[int]) -> None:
    found = list(chunks(sizes, int))
    assert [size for some in found for size in some] == sizes
    assert all(len(some) == 1 or sum(some) <= MOST_CHARACTERS for some in found)
    assert all(sum(some) + following[0] > MOST_CHARACTERS for some, following in pairwise(found))


def test_short_texts_are_bounded_by_their_number() -> None:
    assert [len(some) for some in chunks(["a"] * (2 * MOST_TEXTS + 1), len)] == [MOST_TEXTS, MOST_TEXTS, 1]


def test_chunks_read_at_most_one_item_ahead() -> None:
    """One text beyond the chunk is read, to see whether that text still fits."""
    texts = iter(["a"] * (10 * MOST_TEXTS))
    next(chunks(texts, len))
    assert len(list(texts)) == 9 * MOST_TEXTS - 1
