"""Texts come in chunks that are bounded by their number and by their characters."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from adapt.select.chunks import MOST_CHARACTERS, MOST_TEXTS, chunks


@given(
    st.sampled_from([3 * MOST_CHARACTERS, MOST_CHARACTERS // 3]).flatmap(lambda most: st.lists(st.integers(0, most)))
)
def test_none_is_lost_and_none_fits_in_the_chunk_before(sizes: list[int]) -> None:
    found = list(chunks(sizes, int))
    assert [size for some in found for size in some] == sizes
    assert all(len(some) == 1 or sum(some) <= MOST_CHARACTERS for some in found)
    assert all(sum(some) + following[0] > MOST_CHARACTERS for some, following in pairwise(found))


def test_short_texts_are_bounded_by_their_number() -> None:
    assert [len(some) for some in chunks(["a"] * (2 * MOST_TEXTS + 1), len)] == [MOST_TEXTS, MOST_TEXTS, 1]


def test_what_follows_is_not_drawn_before_it_is_needed() -> None:
    """But for one text: whether it still fits in."""
    texts = iter(["a"] * (10 * MOST_TEXTS))
    next(chunks(texts, len))
    assert len(list(texts)) == 9 * MOST_TEXTS - 1
