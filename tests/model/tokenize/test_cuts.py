"""Tests at which characters the rules split a text into pieces."""

import unicodedata

import pytest

from adapt.model.tokenize.cuts import RULES, cut, table_of
from tests.model.tokenize.adversaries import adversaries


def parts(text: str, *rules: str) -> list[str]:
    found = cut([text], table_of(rules))
    return [piece.decode() for piece in found.pieces.to_pylist()]


@pytest.mark.parametrize(
    ("text", "rules", "expected"),
    [
        ("a bc  d \ne ", ["blank"], ["a", " bc  d \ne "]),
        ("a b\nc\n\nd", ["blank", "line"], ["a", " b", "\nc\n\nd"]),
        ("don't (see 3.14).", ["blank", "sign", "word"], ["don't", " (", "see", " 3", ".", "14", ")."]),
        ("don't x''", ["quote", "quoted", "signs"], ["don", "'", "t x", "''"]),
        ("ab12é3", ["digit"], ["ab", "12", "é", "3"]),
        ("x \u0301y z\u00a0 w \u200bv ｱ ﾞ", ["blank"], ["x \u0301y", " z\u00a0 w \u200bv", " ｱ ﾞ"]),
        ("a … “b” 日本 🙂 c", ["blank"], ["a", " …", " “b”", " 日本 🙂 c"]),
        ("", ["blank"], []),
    ],
)
def test_rules_cut_between_kinds_of_characters(text: str, rules: list[str], expected: list[str]) -> None:
    assert parts(text, *rules) == expected


def test_pieces_are_the_texts_one_after_another() -> None:
    texts = ["", *adversaries(200, seed=5), "", " ", "a"]
    found = cut(texts, table_of(RULES))
    pieces = [piece.decode() for piece in found.pieces.to_pylist()]
    for number, text in enumerate(texts):
        begin, end = found.firsts[number : number + 2]
        assert "".join(pieces[begin:end]) == text
        places = found.places[begin:end].tolist()
        assert places == [len("".join(pieces[begin:place])) for place in range(begin, end)]
        for piece in pieces[begin + 1 : end]:
            assert unicodedata.category(piece[0])[0] != "M"
