"""Tests how examples that are too long are truncated."""

import numpy as np
import pytest

from adapt.finetune.examples import keep

CLS, SEP = 101, 102


def kept(tokens: list[int], room: int) -> list[int]:
    return np.array(tokens)[keep(np.array(tokens), room, {SEP})].tolist()


def test_short_examples_are_not_truncated() -> None:
    assert kept([CLS, 1, 2, SEP], 4) == [CLS, 1, 2, SEP]


def test_a_text_is_cut_before_the_token_that_ends_it() -> None:
    assert kept([CLS, 1, 2, 3, 4, SEP], 4) == [CLS, 1, 2, SEP]
    assert kept([1, 2, 3, 4], 3) == [1, 2, 3]  # the text has no special tokens that must remain


def test_the_longer_text_of_a_pair_is_truncated() -> None:
    assert kept([CLS, 1, 2, 3, 4, 5, SEP, 8, 9, SEP], 7) == [CLS, 1, 2, SEP, 8, 9, SEP]
    assert kept([CLS, 1, SEP, 5, 6, 7, 8, 9, SEP], 6) == [CLS, 1, SEP, 5, 6, SEP]
    # RoBERTa puts two separators between the texts of a pair
    assert kept([CLS, 1, SEP, SEP, 5, 6, 7, 8, 9, SEP], 7) == [CLS, 1, SEP, SEP, 5, 6, SEP]


@pytest.mark.parametrize("seed", range(30))
def test_truncated_examples_fit_and_keep_their_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tokens = np.where(draw.random(draw.integers(1, 30)) < 0.2, SEP, 5)
    room = int(draw.integers(1, 30))
    found = keep(tokens, room, {SEP})
    assert len(found) == min(room, len(tokens))
    assert np.all(np.diff(found) > 0)
    assert not len(found) or 0 <= found[0] <= found[-1] < len(tokens)
