"""Tests each cleaning block on hand-written texts just within and just beyond the block's limits."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.cleaning.cleaning_blocks import BLOCKS, Drop, blocks_of
from adapt.corpus.cleaning.filters import (
    Letters,
    count_letters,
    duplicate_share,
    duplicate_shares,
    letters_in_ascii,
    top_share,
)
from adapt.corpus.cleaning.formatters import is_card, is_iban
from adapt.corpus.shingles import hashed

SENTENCE = "The loss of the model is measured on the text that was held out."


def passed(text: str, name: str, **options: Any) -> tuple[str, dict[str, int]]:
    (block,) = blocks_of([{name: options}])
    changes: dict[str, int] = {}
    return block(text, changes), changes


def dropped(text: str, name: str, **options: Any) -> str | None:
    result, changes = passed(text, name, **options)
    assert isinstance(result, Drop) or changes or result == text
    return str(result) if isinstance(result, Drop) else None


def long_text(words: int) -> list[str]:
    return [f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(words)]


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_do_not_change_ordinary_text(name: str) -> None:
    result, changes = passed(SENTENCE, name)
    assert result == SENTENCE
    assert type(result) is not Drop
    assert changes == {}


@pytest.mark.parametrize("name", ["fix_unicode", "boilerplate", "pii"])
def test_a_block_does_not_change_its_own_output(name: str) -> None:
    text = "Ã©tÃ© a@b.org\nAll rights reserved\nmenu\nmenu\nmenu\n+49 30 1234567"
    once, changes = passed(text, name)
    assert changes
    assert passed(once, name) == (once, {})


def test_fix_unicode() -> None:
    assert passed("lâ\u0080\u0099Ã©tÃ© &amp; \ufb01n", "fix_unicode") == ("l\u2019été & fin", {"fix_unicode": 1})
    assert passed("\u201cété\u201d", "fix_unicode") == ("\u201cété\u201d", {})


def test_language() -> None:
    german = "Der Verlust des Modells wird auf zurückgehaltenem Text gemessen, der nicht gesehen wurde."
    assert dropped(german, "language") == "language de"
    assert dropped(german, "language", keep=["en", "de"]) is None
    assert dropped("x = 1 + 2", "language") == "language unclear"
    assert dropped("x = 1 + 2", "language", keep=["en"], min_score=0.0) != "language unclear"
    assert dropped(SENTENCE * 80 + german * 200, "language") is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"min_characters": 11, "max_characters": 11, "min_words": 3, "max_words": 3}, None),
        ({"min_characters": 12}, "too short"),
        ({"max_characters": 10}, "too long"),
        ({"min_words": 4}, "too short"),
        ({"max_words": 2}, "too long"),
    ],
)
def test_length(options: dict[str, int], reason: str | None) -> None:
    assert dropped("three of 11", "length", **options) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ab cd ef", "mean word length"),
        ("abc def", None),
        ("internationalisation of constitutionalities", "mean word length"),
        ("# word " * 1 + "word " * 9, None),
        ("# word # " + "word " * 9, "too many symbols"),
        ("word... " * 2 + "word " * 9, "too many symbols"),
        ("-item here\n" * 9 + "the last line", None),
        ("-item here\n" * 10, "too many bullets"),
        ("a line ends with dots…\n" * 4 + "and another one does not\n" * 6 + "words " * 30, "too many ellipses"),
        ("word 1234 " * 2 + "word " * 6, None),
        ("word 1234 5678 9012 " + "word", "too few words with letters"),
    ],
)
def test_symbols(text: str, reason: str | None) -> None:
    assert dropped(text, "symbols") == reason


def test_stop_words_are_required_only_if_configured() -> None:
    text = "colourless green ideas sleep furiously beside the sea"
    assert dropped(text, "symbols") is None
    assert dropped(text, "symbols", min_stop_words=1) is None
    assert dropped(text, "symbols", min_stop_words=2) == "too few stop words"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n".join(["one line", "one line", *long_text(60)]), None),
        ("\n".join(["a", "a", "a", "a", "bb", "cc", "dd"]), "repeated lines"),
        ("\n".join(["a long line that takes most of it"] * 2 + ["b", "c", "d", "e", "f"]), "repeated lines"),
        ("first\n\nsame\none\n\nsame\none\n\nlast", "repeated lines"),
        (" ".join(long_text(200)), None),
        ("neural network " * 10 + " ".join(long_text(60)), "repeated words"),
    ],
)
def test_repetition(text: str, reason: str | None) -> None:
    assert dropped(text, "repetition") == reason


def test_repeated_paragraphs_of_different_lines() -> None:
    text = "one\ntwo\n\nthree\nfour\n\none\ntwo"
    assert dropped(text, "repetition", max_lines=1.0, max_line_characters=1.0) == "repeated paragraphs"
    assert dropped(text, "repetition", max_lines=1.0, max_line_characters=1.0, max_paragraphs=0.34) is not None


def test_duplicate_shares_by_example() -> None:
    assert duplicate_shares(["ab", " ab ", "", "cdef"]) == (pytest.approx(1 / 3), pytest.approx(2 / 8))
    assert duplicate_shares([" ", ""]) == (0.0, 0.0)


def test_shares_of_runs_agree_with_a_brute_force_search() -> None:
    words = [letter * (ord(letter) - 96) for letter in "ababcabcdabcdea"]
    hashes, lengths = hashed(words), hashed(words).astype("int64") * 0 + [len(word) for word in words]
    total = sum(map(len, words))
    for n in range(1, 6):
        runs = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        top = max((runs.count(run) * len("".join(run)) for run in runs if runs.count(run) > 1), default=0)
        assert top_share(hashes, lengths, n) == pytest.approx(top / total)
        covered = {i + k for i, run in enumerate(runs) if run in runs[:i] for k in range(n)}
        assert duplicate_share(hashes, lengths, n) == pytest.approx(sum(len(words[i]) for i in covered) / total)


def test_boilerplate() -> None:
    text = (
        "The results are given in table 2.\nWe use cookies to improve this site.\nhome\nShare this\nhome\n"
        "Copyright (c) 2020 Someone\nhome\nThe copyright of maps is a matter of law, and all rights reserved by the"
        " crown were given up when the act of that year came into force in both houses.\nRead more\nThe end."
    )
    kept, changes = passed(text, "boilerplate")
    lines = text.split("\n")
    assert kept.split("\n") == [lines[0], lines[2], lines[4], lines[7], lines[9]]
    assert changes == {"boilerplate notices": 4, "boilerplate repeats": 1}


PII = [
    ("write to jane.doe+x@mail.example.org.", "write to <EMAIL>."),
    ("call +49 30 123456-78 now", "call <PHONE> now"),
    ("call (212) 555-0123 or 212-555-0123", "call <PHONE> or <PHONE>"),
    ("SSN 123-45-6789.", "SSN <SSN>."),
    ("to DE89 3704 0044 0532 0130 00, please", "to <IBAN>, please"),
    ("to DE88 3704 0044 0532 0130 00, please", None),
    ("card 4111 1111 1111 1111", "card <CARD>"),
    ("card 4111 1111 1111 1112", None),
    ("from 8.8.8.8 to 2001:4860:4860::8888", "from <IP> to <IP>"),
    ("from 192.168.0.1 to 127.0.0.1", None),
    ("section 1.2.3, at 10:30:15 on 2024-01-05, p < 0.05, 123-45, 000-12-3456", None),
    ("a grew by +1.97 in 2019-2020, id 1234567890123, x@y", None),
]


@pytest.mark.parametrize(("text", "expected"), PII)
def test_pii(text: str, expected: str | None) -> None:
    result, changes = passed(text, "pii")
    assert result == (expected or text)
    assert sum(changes.values()) == (expected or "").count("<")
    assert passed(text, "pii", emails=False, phones=False, ids=False, addresses=False) == (text, {})


def test_check_digits() -> None:
    """For IBANs and payment cards, only one value of the last digit is valid. All other values are refused."""
    assert is_iban("GB82 WEST 1234 5698 7654 32")
    assert is_card("5500 0000 0000 0004")
    for digit in "0123456789":
        assert is_card("550000000000000" + digit) == (digit == "4")
        assert is_iban("GB82WEST1234569876543" + digit) == (digit == "2")
    assert not is_card("0000 0000 0000 0000")


EVERYTHING = "".join(map(chr, range(sys.maxunicode + 1)))


def is_letter(character: str) -> bool:
    """Returns whether a character is a letter, or a number that is not a decimal digit (such as ½)."""
    return character.isalnum() and not character.isdecimal()


def test_letters_and_visible_characters_of_unicode_are_counted() -> None:
    for start in range(0, len(EVERYTHING), 257):
        some = EVERYTHING[start : start + 257]
        assert count_letters(some) == (sum(map(is_letter, some)), sum(not character.isspace() for character in some))
    assert letters_in_ascii(EVERYTHING) == 52


@given(
    st.text(st.sampled_from("aZé日½ 1_-\n\u3000\ud800\U00020000"), max_size=12), st.sampled_from([0.0, 0.3, 0.5, 1.0])
)
def test_letters_block_agrees_with_a_count_of_all_characters(text: str, fraction: float) -> None:
    letters, visible = sum(map(is_letter, text)), sum(not character.isspace() for character in text)
    expected = text if letters >= fraction * visible else Drop("too few letters")
    assert Letters(min_fraction=fraction)(text, {}) == expected
