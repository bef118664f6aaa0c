"""Tests that vectorised hashing of words gives the same words and hashes as a loop over the words."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from adapt.corpus.shingles import (
    APART,
    CLOSER,
    GONE,
    LONGEST,
    folded_characters,
    normalised,
    settled_characters,
    word_hashes,
    words,
)
from adapt.support.splitmix import mix

TEXTS = [
    "Plain words, and PLAIN words.",
    "",
    "a bell\x07inside, a soft\xadhyphen, two\nlines",
    "Caf\u00e9, cafe\u0301 and \ufb01ne \u0130stanbul",
    "\u6f22\u5b57 and words, \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35x",
    "".join(f"{chr(n)}A{chr(n)} _{chr(n)}9Z" for n in range(128)),
    "half a character \ud800, none\u200bthe\u034fless",
    " ".join("x" * length + " " + "\u00e9" * length for length in range(70)),
    f"{'long' * 50_000} and short",
    "\u03a3\u0391\u03a3 and \u1112\u1161\u11ab, \u0e44\u0e17\u0e22, \u00bd\u2122 a\u200b\u0301 \U00020000\u4e00",
]


def expected_hash(word: str) -> int:
    """Computes the expected hash of one word with Python integers, by the formula of the tested module."""
    data = word.encode()
    if len(data) > LONGEST:
        return int(mix(np.array([xxh3_64_intdigest(data)], np.uint64))[0])
    value = 0
    for start in range(0, len(data), 8):
        before = int(mix(np.array([value], np.uint64))[0]) if start else 0
        value = (before + int.from_bytes(data[start : start + 8], "little")) % 2**64
    return int(mix(np.array([value], np.uint64))[0])


def check(texts: list[str]) -> None:
    hashes, owners = word_hashes(texts)
    expected = [(word, number) for number, text in enumerate(texts) for word in words(normalised(text))]
    assert hashes.tolist() == [expected_hash(word) for word, _ in expected]
    assert owners.tolist() == [number for _, number in expected]


@pytest.mark.parametrize("text", TEXTS)
def test_word_hashes_agree_with_a_loop_over_the_words(text: str) -> None:
    check([text])


def test_words_of_several_texts_are_assigned_to_their_texts() -> None:
    check(TEXTS)
    check([])


@given(st.lists(st.text(max_size=40), max_size=6))
def test_word_hashes_agree_with_a_loop_for_random_texts(texts: list[str]) -> None:
    check(texts)


def test_different_words_have_different_hashes() -> None:
    hashes, _ = word_hashes([" ".join(f"word{number} {number:x}" for number in range(200_000))])
    assert len(np.unique(hashes)) == len({word for n in range(200_000) for word in (f"word{n}", f"{n:x}")})


CHARACTERS = [*range(0x33000), *range(0xE0000, 0xE1000)]
"""Code points to test: all code points with a name, and some without."""


def between(found: int) -> list[str]:
    """Returns the expected words of the text a?b, where ? is a character whose table entry is `found`."""
    if found == GONE:
        return ["ab"]
    if found & APART:
        return ["a", chr(found - APART), "b"]
    return [f"a{chr(found)}b"] if found else ["a", "b"]


def test_table_agrees_with_normalised_for_all_characters_not_marked_closer() -> None:
    folded = folded_characters().tolist()
    wrong = [c for c in CHARACTERS if folded[c] != CLOSER and words(normalised(f"a{chr(c)}b")) != between(folded[c])]
    assert wrong == []
    assert sum(folded[c] == CLOSER for c in CHARACTERS) < 0.05 * len(CHARACTERS)


def test_table_of_normalised_texts_agrees_with_words() -> None:
    settled = settled_characters().tolist()
    formed = {form for c in CHARACTERS for form in normalised(chr(c)) if form != " "}
    assert [form for form in formed if words(f"a{form}b") != between(settled[ord(form)])] == []


def test_characters_that_join_the_one_before_them_are_marked_closer() -> None:
    folded = folded_characters().tolist()
    forms = (unicodedata.decomposition(chr(c)).split() for c in range(0x110000))
    seconds = {int(form[1], 16) for form in forms if len(form) == 2 and not form[0].startswith("<")}
    korean = {ord(end) for c in range(0xAC00, 0xD7A4) for end in unicodedata.normalize("NFD", chr(c))[1:]}
    assert len(seconds) > 50
    assert {folded[c] for c in seconds | korean} == {CLOSER}
