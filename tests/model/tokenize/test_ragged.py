"""Tests lists that are stored in flat arrays (`Ragged`) against Python lists."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapt.model.tokenize.piece_tokenizer import IDS, WORDS, Ragged

LISTS = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.booleans()), max_size=8)


@given(LISTS)
def test_take_and_where_select_lists_in_order(given: list[tuple[list[int], bool]]) -> None:
    lists, chosen = [ids for ids, _ in given], np.array([wanted for _, wanted in given], bool)
    flat = [*chain(*lists)]
    found = Ragged.of([*map(len, lists)], {IDS: flat, WORDS: [number > 4 for number in flat]}).where(chosen)
    wanted = [ids for ids, is_wanted in given if is_wanted]
    assert [ids.tolist() for ids in found.lists(IDS)] == wanted
    assert [marks.tolist() for marks in found.lists(WORDS)] == [[number > 4 for number in ids] for ids in wanted]
    assert found.same(found.take(np.arange(len(wanted))))
