"""What the table says of a character is what it becomes between others."""

import unicodedata

from adapt.corpus.folding import APART, CLOSER, GONE, folded_characters, settled_characters
from adapt.corpus.shingles import normalised, words

CHARACTERS = [*range(0x33000), *range(0xE0000, 0xE1000)]
"""All that have a name, and some that have none."""


def between(found: int) -> list[str]:
    """The words of one between two letters."""
    if found == GONE:
        return ["ab"]
    if found & APART:
        return ["a", chr(found - APART), "b"]
    return [f"a{chr(found)}b"] if found else ["a", "b"]


def test_each_character_that_needs_no_closer_look_becomes_what_it_becomes_in_a_text() -> None:
    folded = folded_characters().tolist()
    wrong = [c for c in CHARACTERS if folded[c] != CLOSER and words(normalised(f"a{chr(c)}b")) != between(folded[c])]
    assert wrong == []
    assert sum(folded[c] == CLOSER for c in CHARACTERS) < 0.05 * len(CHARACTERS)


def test_each_character_of_a_text_in_lower_case_and_one_form_is_settled() -> None:
    settled = settled_characters().tolist()
    formed = {form for c in CHARACTERS for form in normalised(chr(c)) if form != " "}
    assert [form for form in formed if words(f"a{form}b") != between(settled[ord(form)])] == []


def test_characters_that_join_the_one_before_them_need_a_closer_look() -> None:
    folded = folded_characters().tolist()
    forms = (unicodedata.decomposition(chr(c)).split() for c in range(0x110000))
    seconds = {int(form[1], 16) for form in forms if len(form) == 2 and not form[0].startswith("<")}
    korean = {ord(end) for c in range(0xAC00, 0xD7A4) for end in unicodedata.normalize("NFD", chr(c))[1:]}
    assert len(seconds) > 50
    assert {folded[c] for c in seconds | korean} == {CLOSER}
