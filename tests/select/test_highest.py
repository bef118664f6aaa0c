"""What a selection takes of a pool; and the random one, which is uniform."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from adapt.select.base import NoOptions, Selection
from adapt.select.highest import highest
from adapt.select.random import BLOCK, Random
from tests.select.longest import Longest


def chosen(texts: Iterable[str], count: int, seed: int = 0, kind: type[Selection] = Random) -> list[tuple[int, str]]:
    return [(place, text) for place, text, _ in highest(kind(NoOptions(), seed), texts, [], count)]


def test_so_many_different_texts_are_taken_in_the_pools_order() -> None:
    texts = [f"text {number}" for number in range(BLOCK + 100)]
    found = chosen(texts, 50, 3)
    places = [place for place, _ in found]
    assert len(set(places)) == 50
    assert places == sorted(places)
    assert all(texts[place] == text for place, text in found)


def test_the_seed_decides_and_a_larger_sample_holds_a_smaller_one() -> None:
    texts = [str(number) for number in range(1000)]
    assert chosen(texts, 30, 1) == chosen(iter(texts), 30, 1)
    assert chosen(texts, 30, 1) != chosen(texts, 30, 2)
    assert set(chosen(texts, 10, 1)) < set(chosen(texts, 30, 1))


def test_a_random_sample_hangs_on_places_and_not_on_texts() -> None:
    """So that cleaning that changes letters alone takes the same documents."""
    texts = [str(number) for number in range(100)]
    assert [place for place, _ in chosen(texts, 9)] == [place for place, _ in chosen(["x"] * 100, 9)]


@pytest.mark.parametrize("kind", [Random, Longest])
def test_a_pool_that_is_too_small_is_taken_whole(kind: type[Selection]) -> None:
    assert chosen(["a", "b"], 5, kind=kind) == [(0, "a"), (1, "b")]
    assert chosen([], 5, kind=kind) == []


def test_every_text_has_the_same_chance() -> None:
    counts = np.zeros(40)
    for seed in range(1000):
        for place, _ in chosen(map(str, range(40)), 8, seed):
            counts[place] += 1
    assert chisquare(counts).pvalue > 0.001


def test_the_longest_texts_are_taken_of_equal_ones_the_later() -> None:
    assert chosen(["ccc", "a", "bb", "dd", "eeee"], 3, kind=Longest) == [(0, "ccc"), (3, "dd"), (4, "eeee")]


class Alike(Selection):
    """A score is the number of words that a text shares with the target; it notes how far the pool was read."""

    read: list[int]

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        known = {word for text in target for word in text.split()}
        self.read = []
        for text in pool:
            self.read.append(len(self.read))
            yield float(len(known & set(text.split())))


def test_a_selection_sees_the_tasks_texts_and_reads_the_pool_once_as_it_comes() -> None:
    selection = Alike(NoOptions(), 0)
    given: list[Any] = []

    def pool() -> Iterator[str]:
        for text in ("of genes", "the genes of cells", "stars", "cells"):
            given.append((text, len(getattr(selection, "read", []))))
            yield text

    found = highest(selection, pool(), ["genes and cells"], 2)
    assert found == [(1, "the genes of cells", 2.0), (3, "cells", 1.0)]
    assert [read for _, read in given] == [0, 1, 2, 3]  # none is drawn before the one ahead of it has its score
