"""Tests of taking the documents with the highest scores from a pool, and of uniform random selection."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from adapt.select.choose import best, highest
from adapt.select.pool import Document
from adapt.select.selection import AT_ONCE, NEVER, NoOptions, Random, Room, Selection
from adapt.support.errors import DataError
from tests.select.pools import Listed, Longest, numbered


def chosen(texts: Iterable[str], count: int, seed: int = 0, kind: type[Selection] = Random) -> list[tuple[int, str]]:
    return sorted((id, text) for id, text, _ in highest(kind(NoOptions(), seed), numbered(texts), [], count))


def test_the_requested_number_of_different_texts_is_taken() -> None:
    texts = [f"text {number}" for number in range(AT_ONCE + 100)]
    found = chosen(texts, 50, 3)
    assert len({place for place, _ in found}) == 50
    assert all(texts[place] == text for place, text in found)


def test_samples_depend_on_the_seed_and_larger_ones_contain_smaller_ones() -> None:
    texts = [str(number) for number in range(1000)]
    assert chosen(texts, 30, 1) == chosen(iter(texts), 30, 1)
    assert chosen(texts, 30, 1) != chosen(texts, 30, 2)
    assert set(chosen(texts, 10, 1)) < set(chosen(texts, 30, 1))


def test_a_random_sample_depends_on_ids_and_not_on_texts() -> None:
    """Sampling uses ids, so cleaning that only changes letters does not change which documents are selected."""
    texts = [str(number) for number in range(100)]
    assert [place for place, _ in chosen(texts, 9)] == [place for place, _ in chosen(["x"] * 100, 9)]


@pytest.mark.parametrize("kind", [Random, Longest])
def test_a_pool_that_is_too_small_is_taken_completely(kind: type[Selection]) -> None:
    assert chosen(["a", "b"], 5, kind=kind) == [(0, "a"), (1, "b")]
    assert chosen([], 5, kind=kind) == []


def test_every_text_has_the_same_chance() -> None:
    counts = np.zeros(40)
    for seed in range(1000):
        for place, _ in chosen(map(str, range(40)), 8, seed):
            counts[place] += 1
    assert chisquare(counts).pvalue > 0.001


def test_the_longest_texts_come_first_of_equal_ones_the_first_of_the_pool() -> None:
    texts = ["ccc", "a", "bb", "dd", "eeee"]
    found = highest(Longest(NoOptions(), 0), numbered(texts), [], 4)
    assert found == [(4, "eeee", 4.0), (0, "ccc", 3.0), (2, "bb", 2.0), (3, "dd", 2.0)]


def test_ties_go_to_the_same_texts_for_any_number_held() -> None:
    texts = ["aa", "bb", "c", "dd", "ee"] * 20
    whole = highest(Longest(NoOptions(), 0), numbered(texts), [], 100)
    for count in range(1, 100):
        assert highest(Longest(NoOptions(), 0), numbered(texts), [], count) == whole[:count]


def test_room_in_characters_holds_the_best_texts_that_fill_it() -> None:
    texts = ["a" * size for size in (5, 1, 9, 3, 7, 7)]
    for characters, kept in ((1, [9]), (9, [9]), (10, [9, 7]), (17, [9, 7, 7]), (31, [9, 7, 7, 5, 3]), (99, None)):
        found = best(Longest(NoOptions(), 0), numbered(texts), [], Room(characters=characters))
        sizes = [len(entry.held) for entry in sorted(found.held, reverse=True)]
        assert sizes == (kept or [9, 7, 7, 5, 3, 1])
        assert found.is_all is (kept is None)


class Told(Selection):
    """A selection whose score is the number in the text."""

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        return map(float, pool)


@pytest.mark.parametrize(("some", "word"), [([1.0], "fewer"), ([1.0, 2.0, 3.0], "more")])
def test_a_selection_that_does_not_score_each_text_is_refused(some: list[float], word: str) -> None:
    class Odd(Selection):
        def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
            list(pool)
            return iter(some)

    with pytest.raises(DataError, match=f"Odd gives {word} scores than the pool has texts"):
        highest(Odd(NoOptions(), 0), numbered(["a", "b"]), [], 2)


def test_excluded_documents_are_not_taken_and_nan_is_refused() -> None:
    assert [text for _, text, _ in highest(Told(NoOptions(), 0), numbered(["1", "-inf", "-5"]), [], 9)] == ["1", "-5"]
    assert float("-inf") == NEVER
    with pytest.raises(DataError, match="gives the text with id 1 of the pool the score NaN"):
        highest(Told(NoOptions(), 0), numbered(["1", "nan"]), [], 9)


class Alike(Selection):
    """A selection whose score is the number of words shared with the target.

    `read` lists the documents scored so far.
    """

    read: list[int]

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        known = {word for text in target for word in text.split()}
        self.read = []
        for text in pool:
            self.read.append(len(self.read))
            yield float(len(known & set(text.split())))


def test_a_selection_sees_the_target_and_reads_the_pool_once_in_order() -> None:
    selection = Alike(NoOptions(), 0)
    drawn: list[tuple[str, int]] = []

    class Drawn(Listed):
        def visit(self, look: Any, hint: Any = None, on_device: bool = False) -> Iterator[Any]:
            yield from look(self._noted(), None)

        def _noted(self) -> Iterator[Document]:
            for document in self.documents:
                drawn.append((str(document), len(getattr(selection, "read", []))))
                yield document

    texts = ("of genes", "the genes of cells", "stars", "cells")
    pool = Drawn(numbered(texts).documents)
    assert highest(selection, pool, ["genes and cells"], 2) == [(1, "the genes of cells", 2.0), (0, "of genes", 1.0)]
    assert [read for _, read in drawn] == [0, 1, 2, 3]  # no document is read before the previous one has its score


@pytest.mark.parametrize("room", [Room(documents=7), Room(characters=60), Room(documents=500)])
def test_the_division_of_the_pool_does_not_change_the_best(room: Room) -> None:
    """Covers equal scores, and pools that do or do not say which documents are already in memory."""
    texts = [str(number % 13 / 4) + "x" * (number % 5) for number in range(300)]

    class Leading(Told):
        def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
            return (float(text.rstrip("x")) for text in pool)

    whole = best(Leading(NoOptions(), 0), numbered(texts, 2**40), [], room)
    by_hand = sorted(range(300), key=lambda n: (-float(texts[n].rstrip("x")), n))
    expected = [2**40 + number for number in by_hand[: len(whole.held)]]
    assert [-entry.before for entry in sorted(whole.held, reverse=True)] == expected
    for at_once in (1, 7, 64, 299):
        for is_told in (True, False):
            pool = numbered(texts, 2**40, at_once=at_once)
            if not is_told:
                pool.visit = partial(_untold, pool.visit)  # type: ignore[method-assign]
            parts = best(Leading(NoOptions(), 0), pool, [], room)
            assert sorted(parts.held) == sorted(whole.held)
            assert (parts.is_all, parts.characters) == (whole.is_all, whole.characters)
    assert whole.is_all is (room.documents == 500)


def _untold(visit: Any, look: Any, hint: Any, on_device: bool = False) -> Iterator[Any]:
    return visit(look, on_device=on_device)
