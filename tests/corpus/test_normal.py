"""Many texts normalised at once against each by itself."""

import sys
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.normal import normalised_texts
from adapt.corpus.screening.heldout import in_share, is_heldout, key_of, keys_of
from adapt.corpus.shingles import normalised

PIECES = ["a", "B ", "  ", "\n\n", "\0", " \0 ", "\x1c", "\x7f", "É", "e\u0301", "ΑΣ", "İ", "ﬁ", "日本", "\u00a0"]
RARE = ["\u200b", "\ud800", "\u2028", "\x85", "\u1680", "\u3000", "\U0001f642", "\U000e0001"]
TEXTS = st.lists(st.lists(st.sampled_from([*PIECES, *RARE]), max_size=8).map("".join), max_size=8)


@given(TEXTS)
def test_texts_together_are_what_each_is_alone(texts: list[str]) -> None:
    assert normalised_texts(texts) == [normalised(text).encode() for text in texts]


def test_every_character_is_treated_as_it_is_alone() -> None:
    """In the midst of a text, beside spaces, at the ends."""
    numbers = [*range(0x3000), *range(0x3000, 0x20000, 7), *range(0x20000, sys.maxunicode + 1, 257)]
    texts = [f"{chr(n)}A{chr(n)} {chr(n)} b" for n in numbers]
    assert normalised_texts(texts) == [normalised(text).encode() for text in texts]


@given(TEXTS, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_keys_of_texts_together_are_hashes_of_each(texts: list[str], fraction: float) -> None:
    expected = [int.from_bytes(blake2b(normalised(text).encode(), digest_size=8).digest()) for text in texts]
    assert keys_of(texts).tolist() == [key_of(text) for text in texts] == expected
    assert in_share(keys_of(texts), fraction).tolist() == [is_heldout(text, fraction) for text in texts]
