"""A pool of three sources of known topic, one of them of short texts: what is selected is of the target's source."""

from collections.abc import Callable

import numpy as np
import pytest

from adapt.select.table import selection_of
from tests.select.pools import numbered, ranked

COMMON = [f"common{number}" for number in range(60)]
TAKEN, EACH = 60, 180
SUBJECT, STYLE = 0.2, 0.2
"""Shares of the words."""
LENGTHS = {"systems": (60, 140), "cells": (8, 14), "films": (120, 260)}
"""Words of the documents of each source: only `cells` has texts as short as sentences."""


def text_of(source: str, words: int, rng: np.random.Generator) -> str:
    """Some words are of the source alone; the two sources of science share some, which films do not have."""
    subject = [f"{source}{number}" for number in range(40)]
    style = [f"{'fun' if source == 'films' else 'science'}{number}" for number in range(40)]
    kinds = np.digitize(rng.random(words), [SUBJECT, SUBJECT + STYLE])
    lists = (subject, style, COMMON)
    return " ".join(
        lists[kind][int(place * len(lists[kind]))] for kind, place in zip(kinds, rng.random(words), strict=True)
    )


def texts_of(source: str, count: int, seed: int, lengths: tuple[int, int]) -> list[str]:
    rng = np.random.default_rng(seed)
    return [text_of(source, int(rng.integers(*lengths)), rng) for _ in range(count)]


def bracketed(text: str) -> str:
    words = text.split()
    return " ".join([words[0], "E1START", words[1], "E1END", *words[2:5], "E2START", *words[5:6], "E2END", *words[6:]])


@pytest.mark.parametrize("kind", ["dsir", "classifier"])
@pytest.mark.parametrize("source", list(LENGTHS))
@pytest.mark.parametrize("lengths", [(6, 9), (20, 30), (150, 250)], ids=["short", "sentences", "long"])
@pytest.mark.parametrize("marked", [str, bracketed], ids=["plain", "marked"])
def test_what_is_selected_is_of_the_targets_source(
    kind: str, source: str, lengths: tuple[int, int], marked: Callable[[str], str]
) -> None:
    pool = [(name, text) for name in LENGTHS for text in texts_of(name, EACH, 1, LENGTHS[name])]
    target = [marked(text) for text in texts_of(source, 120, 2, lengths)]
    best = ranked(selection_of(kind, {}, 0), numbered([text for _, text in pool]), target)[:TAKEN]
    assert sum(pool[id][0] == source for id, _ in best) >= 0.8 * TAKEN
