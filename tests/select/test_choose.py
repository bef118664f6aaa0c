"""Tests of choosing documents from a pool up to a budget, without near copies."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from adapt.corpus.minhash import DuplicateRule
from adapt.select.choose import HELD, Budget, Choice, Distinct, choose
from adapt.select.selection import NEVER, Given, NoOptions, Offer, Random, Room, Selection
from tests.samples import sentences
from tests.select.pools import Listed, Longest, given, numbered

TEXTS = sentences(60, shortest=3, longest=40)


def words_in(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def chosen(
    pool: Listed, *selections: Selection, keep: float = 2.0, target: Sequence[str] = (), **budget: int
) -> Choice:
    return choose(selections, given(pool, target), Budget(**budget), keep, DuplicateRule(near=True), words_in)


def longest() -> Selection:
    return Longest(NoOptions(), 0)


def texts_of(choice: Choice) -> list[str]:
    return [str(each.document) for each in choice.taken]


def test_the_best_documents_are_taken_up_to_the_budget() -> None:
    choice = chosen(numbered(TEXTS), longest(), documents=7)
    assert texts_of(choice) == sorted(TEXTS, key=len, reverse=True)[:7]
    assert (choice.is_full, choice.near, choice.passed) == (True, 0, ())
    assert choice.tokens == sum(words_in(texts_of(choice)))


@pytest.mark.parametrize("tokens", [1, 100, 333])
def test_documents_are_taken_up_to_the_budget_of_tokens(tokens: int) -> None:
    choice = chosen(numbered(TEXTS), longest(), tokens=tokens)
    assert texts_of(choice) == sorted(TEXTS, key=len, reverse=True)[: len(choice.taken)]
    assert choice.tokens - choice.taken[-1].tokens < tokens <= choice.tokens


def test_a_pool_that_does_not_fill_the_budget_is_reported() -> None:
    for budget in ({"documents": 61}, {"tokens": 10**6}):
        choice = chosen(numbered(TEXTS), longest(), **budget)
        assert len(choice.taken) == 60
        assert not choice.is_full


@pytest.mark.parametrize("held", [0, HELD])
def test_only_the_best_of_several_near_copies_is_taken(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks a pool in which 40 of the best documents are near copies, of which only one may be taken.

    If no further candidates are held in memory (HELD is 0), the pool must be read again.
    """
    monkeypatch.setattr("adapt.select.choose.HELD", held)
    copies = [" ".join([*["word"] * 100, text]) for text in TEXTS[:1] * 40]
    pool = numbered([*TEXTS, *(text + " " * n for n, text in enumerate(copies))])
    choice = chosen(pool, longest(), documents=5)
    assert choice.taken[0].document.id == 99  # this copy has the most spaces, so it is the longest text
    assert texts_of(choice)[1:] == sorted(TEXTS, key=len, reverse=True)[:4]
    assert choice.near == 39
    assert (pool.passes > 1) == (held == 0)


def test_ids_beyond_float32_are_exact() -> None:
    first = 2**24
    pool = numbered(TEXTS, first)
    taken = [each.document.id for each in chosen(pool, longest(), longest(), documents=20).taken]
    assert sorted(taken) == sorted(first + TEXTS.index(text) for text in sorted(TEXTS, key=len, reverse=True)[:20])
    assert [each.line({})["id"] for each in chosen(numbered(TEXTS, 2**40, 2**20), longest(), documents=3).taken] == [
        2**40 + 2**20 * TEXTS.index(text) for text in sorted(TEXTS, key=len, reverse=True)[:3]
    ]


class Learning(Selection):
    """A selection that records its inputs and prefers short texts."""

    seen: list[str]

    def learn(self, given: Given) -> None:
        self.seen = [*map(str, given.pool), *map(str, given.pool)]
        self.target = list(given.target)

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        return (-float(len(text)) for text in pool)


def test_each_selection_of_a_list_sees_the_documents_passed_on_to_it() -> None:
    last = Learning(NoOptions(), 0)
    choice = chosen(numbered(TEXTS), Random(NoOptions(), 1), longest(), last, keep=3.0, documents=4, target=["target"])
    drawn = chosen(numbered(TEXTS), Random(NoOptions(), 1), documents=12)
    passed = set(texts_of(drawn))
    assert choice.passed == (12, 12)
    assert last.seen == 2 * [text for text in TEXTS if text in passed]
    assert last.target == ["target"]
    assert texts_of(choice) == sorted(passed, key=len)[:4]


class Even(Selection):
    """A filter that excludes documents with an odd number of letters."""

    def is_filter(self) -> bool:
        return True

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        return (NEVER if len(text) % 2 else 0.0 for text in pool)


def test_a_filter_passes_on_all_permitted_documents() -> None:
    even = [text for text in TEXTS if len(text) % 2 == 0]
    choice = chosen(numbered(TEXTS, 2**40), Even(NoOptions(), 0), longest(), keep=0.1, documents=4)
    assert choice.passed == (len(even),)
    assert texts_of(choice) == sorted(even, key=len, reverse=True)[:4]


def test_a_list_passes_on_a_multiple_of_a_budget_of_tokens() -> None:
    choice = chosen(numbered(TEXTS), Random(NoOptions(), 1), longest(), keep=4.0, tokens=30)
    assert 5 < choice.passed[0] < 40
    assert choice.is_full


def test_a_larger_budget_contains_a_smaller_one() -> None:
    def taken(**budget: Any) -> list[int]:
        return [each.document.id for each in chosen(numbered(TEXTS), Random(NoOptions(), 2), **budget).taken]

    assert taken(documents=20)[:10] == taken(documents=10)
    assert taken(tokens=200)[: len(taken(tokens=100))] == taken(tokens=100)


ALIKE = DuplicateRule(near=True)


def jaccard(one: str, other: str) -> float:
    sets = [{tuple(words[n : n + 5]) for n in range(max(1, len(words) - 4))} for words in (one.split(), other.split())]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_copies_up_to_case_and_spaces_are_skipped_also_in_one_call() -> None:
    distinct = Distinct(ALIKE)
    assert distinct.are_new(["a text", "A  Text", "another"]) == [True, False, True]
    assert distinct.are_new(["another", "a third one"]) == [False, True]
    assert distinct.are_new([]) == []


def test_near_copies_are_those_of_a_comparison_of_all_pairs() -> None:
    draw = random.Random(0)
    base = [text.rstrip(".") for text in sentences(40, shortest=60, longest=80)]
    texts = []
    for text in base:
        words = text.split()
        light = [*words[:-1], "changed"]  # a near copy: only one of about 70 shingles differs
        # not a near copy: hardly any shingle stays the same
        heavy = [word if n % 6 else "changed" for n, word in enumerate(words)]
        texts += [text, " ".join(light), " ".join(heavy)]
    draw.shuffle(texts)
    kept: list[str] = []
    expected = []
    for text in texts:
        similar = [jaccard(text, other) for other in kept]
        assert not any(0.7 < value < 0.9 for value in similar)  # no pair is near the threshold of 0.8
        expected.append(all(value < 0.8 for value in similar))
        kept += [text] if expected[-1] else []
    distinct = Distinct(ALIKE)
    assert [new for start in range(0, len(texts), 7) for new in distinct.are_new(texts[start : start + 7])] == expected
    assert sum(expected) == 80


class Found(Longest):
    """A selection that has found 70 documents in an index, although the pool has only 60."""

    def look_for(self, room: Room, per_text: int | None) -> Offer:
        return "enough"

    def documents_found(self) -> int:
        return 70


def test_documents_of_an_index_that_the_pool_excludes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    choice = chosen(numbered(TEXTS), Found(NoOptions(), 0), documents=70)
    assert len(choice.taken) == 60
    assert "10 of the 70 documents found by Found contain held-out text" in capsys.readouterr().err
