"""Counts of characters against Python's own words for them."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.cleaning.block import Drop
from adapt.corpus.cleaning.characters import count_letters
from adapt.corpus.cleaning.letters import Letters, letters_in_ascii

EVERYTHING = "".join(map(chr, range(sys.maxunicode + 1)))


def is_letter(character: str) -> bool:
    """A letter, or a number that is no decimal digit, such as a half."""
    return character.isalnum() and not character.isdecimal()


def test_every_character_is_counted_for_what_it_is() -> None:
    for start in range(0, len(EVERYTHING), 257):
        some = EVERYTHING[start : start + 257]
        assert count_letters(some) == (sum(map(is_letter, some)), sum(not character.isspace() for character in some))
    assert letters_in_ascii(EVERYTHING) == 52


@given(
    st.text(st.sampled_from("aZé日½ 1_-\n\u3000\ud800\U00020000"), max_size=12), st.sampled_from([0.0, 0.3, 0.5, 1.0])
)
def test_the_short_way_passes_no_text_that_the_long_one_drops(text: str, fraction: float) -> None:
    letters, visible = sum(map(is_letter, text)), sum(not character.isspace() for character in text)
    expected = text if letters >= fraction * visible else Drop("too few letters")
    assert Letters(min_fraction=fraction)(text, {}) == expected
