"""Tests how texts are normalised and split into words. Compares hashed runs of n words with runs found by slicing."""

import sys
import unicodedata
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.heldout import in_share, key_of, keys_of
from adapt.corpus.shingles import all_ngrams, hashed, ngrams, normalised, normalised_texts, shingles, words
from tests.samples import is_heldout

EXPECTED = [10180804661750008193, 815290569882639908, 3088868576707356718]
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "dd"]), max_size=30).map(" ".join)


def runs(text: str, n: int) -> set[tuple[str, ...]]:
    """Returns the runs of n words of a text, by slicing. A text of fewer than n words is one run."""
    found = text.split()
    n = min(n, len(found))
    return {tuple(found[start : start + n]) for start in range(len(found) - n + 1)}


@given(TEXTS, TEXTS, st.integers(1, 6))
def test_runs_have_equal_hashes_only_if_their_words_are_equal(one: str, other: str, n: int) -> None:
    mine, theirs = set(shingles(one, n).tolist()), set(shingles(other, n).tolist())
    if one and other:
        assert len(mine) == len(runs(one, n))
        assert len(mine & theirs) == len(runs(one, n) & runs(other, n))


def test_hashes_depend_on_the_order_and_number_of_words() -> None:
    hashes = hashed(["a", "b", "a"])
    assert len(set(ngrams(hashes, 2).tolist())) == 2
    assert not {*ngrams(hashes, 1).tolist()} & {*ngrams(hashes, 2).tolist()}
    assert ngrams(hashes, 4).tolist() == []


def test_hashes_are_the_same_in_every_process_and_version() -> None:
    """The hashes of a fixed text never change, because later versions read corpora and keys of earlier versions."""
    assert shingles("the loss of the model", 3).tolist() == EXPECTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The\tLoss\n\nis ", "the loss is"),
        ("\ufb01ne \uff26\uff55ll", "fine full"),
        ("\u00c9e\u0301", "\u00e9\u00e9"),
        ("", ""),
    ],
)
def test_normalised_texts_by_example(text: str, expected: str) -> None:
    assert normalised(text) == expected
    assert normalised(expected) == expected


def test_invisible_characters_are_removed_and_spaces_are_not() -> None:
    """For every Unicode character, compares `normalised` with Python's own classification of the character.

    White space becomes a single space, and format, control and surrogate characters disappear.
    """
    for character in map(chr, range(sys.maxunicode + 1)):
        if character.isspace() and character not in "\x1c\x1d\x1e\x1f":
            assert normalised(f"a{character}b") == "a b"
        elif unicodedata.category(character) in ("Cf", "Cc", "Cs"):
            assert normalised(f"a{character}b") == "ab"


@pytest.mark.parametrize("unseen", ["\u00ad", "\u200b", "\ufeff", "\u034f", "\u3164", "\ufe0f", "\U000e0101", "\x00"])
def test_invisible_characters_do_not_change_the_normalised_text(unseen: str) -> None:
    assert normalised(unseen.join("The e\u0301preuve of 日本")) == normalised("The \u00e9preuve of 日本")


def test_words_exclude_punctuation_and_split_unspaced_scripts() -> None:
    assert words("it's 3.5 (or so), über-all") == ["it", "s", "3", "5", "or", "so", "über", "all"]
    assert words("東京は bert 大きい") == ["東", "京", "は", "bert", "大", "き", "い"]
    assert len(words("ภาษาไทย")) > 3


def test_texts_without_words_have_different_hashes() -> None:
    assert shingles("!!!", 5).tolist() != shingles("???", 5).tolist()
    assert shingles("", 5).dtype == np.uint64
    assert len(shingles("", 5)) == 1


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_texts_are_normalised_like_others(text: str) -> None:
    assert normalised(text) == normalised(f"{text} é").removesuffix("é").rstrip(" ")


@given(TEXTS, st.sets(st.integers(1, 14)))
def test_all_ngrams_equals_ngrams_of_each_length(text: str, lengths: set[int]) -> None:
    hashes = hashed(text.split())
    found = {n: runs.tolist() for n, runs in all_ngrams(hashes, sorted(lengths))}
    assert found == {n: ngrams(hashes, n).tolist() for n in lengths}


PIECES = ["a", "B ", "  ", "\n\n", "\0", " \0 ", "\x1c", "\x7f", "É", "e\u0301", "ΑΣ", "İ", "ﬁ", "日本", "\u00a0"]
RARE = ["\u200b", "\ud800", "\u2028", "\x85", "\u1680", "\u3000", "\U0001f642", "\U000e0001"]
ADVERSE_TEXTS = st.lists(st.lists(st.sampled_from([*PIECES, *RARE]), max_size=8).map("".join), max_size=8)


@given(ADVERSE_TEXTS)
def test_normalised_texts_equals_normalised_of_each_text(texts: list[str]) -> None:
    assert normalised_texts(texts) == [normalised(text).encode() for text in texts]


def test_normalised_texts_equals_normalised_for_every_character() -> None:
    """Compares both functions on texts with a character at the start of a word, at its end, and between spaces.

    All code points below 0x3000 and a sample of the others are tested.
    """
    numbers = [*range(0x3000), *range(0x3000, 0x20000, 7), *range(0x20000, sys.maxunicode + 1, 257)]
    texts = [f"{chr(n)}A{chr(n)} {chr(n)} b" for n in numbers]
    assert normalised_texts(texts) == [normalised(text).encode() for text in texts]


@given(ADVERSE_TEXTS, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_keys_of_many_texts_equal_single_keys(texts: list[str], fraction: float) -> None:
    expected = [int.from_bytes(blake2b(normalised(text).encode(), digest_size=8).digest()) for text in texts]
    assert keys_of(texts).tolist() == [key_of(text) for text in texts] == expected
    assert in_share(keys_of(texts), fraction).tolist() == [is_heldout(text, fraction) for text in texts]
