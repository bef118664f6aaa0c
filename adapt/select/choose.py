"""From a pool to the documents that are taken: each selection narrows the pool, the last one fills the budget.

No two near copies of a text are taken: each text is compared with those that were taken before it, by the rules of
stage `dedup`: the same normalised text, or shingles whose estimated Jaccard similarity reaches the threshold, found by
bands of MinHash signatures. The best text comes first, so the best of several copies stays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_128_intdigest

from adapt.corpus.deduplication import Alike
from adapt.corpus.minhash import band_hashes, estimated_jaccard, signatures
from adapt.corpus.shingles import normalised
from adapt.model.locate import Pretrained
from adapt.model.tokenize.ragged import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from adapt.model.tokenizer import load_text_tokenizer
from adapt.select.grams import chunks
from adapt.select.highest import Ranked, as_it_is, best, permitted_ids
from adapt.select.selection import Given, Room, Selection
from adapt.terminal.console import log

if TYPE_CHECKING:
    from adapt.select.pool import Document


class Distinct:
    """Remembers what was taken.

    Args:
        alike: what counts as a copy.
    """

    def __init__(self, alike: Alike) -> None:
        self._alike = alike
        self._texts: set[int] = set()
        self._signatures: list[np.ndarray] = []
        self._buckets: dict[int, list[int]] = {}
        """For each hash of a band the signatures that have it."""

    def are_new(self, texts: Sequence[str]) -> list[bool]:
        """Which of some texts are no copies of one before, also among themselves; these count as taken."""
        plain = [normalised(text) for text in texts]
        signed = signatures(plain, self._alike.n, self._alike.permutations)
        bands = band_hashes(signed, *self._alike.bands).tolist()
        return [self._is_new(*known) for known in zip(plain, signed, bands, strict=True)]

    def _is_new(self, text: str, signature: np.ndarray, bands: list[int]) -> bool:
        digest = xxh3_128_intdigest(text.encode("utf-8", "replace"))
        near = sorted({number for band in bands for number in self._buckets.get(band, ())})
        if digest in self._texts:
            return False
        if near:
            known = np.stack([self._signatures[number] for number in near])
            if (estimated_jaccard(known, signature[None]) >= self._alike.threshold).any():
                return False
        self._texts.add(digest)
        for band in bands:
            self._buckets.setdefault(band, []).append(len(self._signatures))
        self._signatures.append(signature)
        return True


SPARE = 1.2
"""So many times the budget is held of the best texts, since near copies among them are not taken."""
HELD = 2_000_000
"""Characters of the best texts that are held in any case: a small selection seldom has to read the pool again."""
CHARACTERS = 6
"""A token has so many characters, at most on average; where it has more, the pool is read again with more room."""
CountTokens = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class Budget:
    """How much is taken; one of the two."""

    documents: int | None = None
    tokens: int | None = None
    """Documents are taken until they have so many tokens, the one with which they reach that included."""
    per_text: int | None = None
    """`documents` for each text of the target, where that is how many they are."""

    def room(self, times: float) -> Room:
        """Room for so many times the budget."""
        if self.documents is not None:
            return Room(documents=ceil(times * self.documents))
        return Room(characters=ceil(times * CHARACTERS * (self.tokens or 0)))

    def is_full(self, documents: int, tokens: int) -> bool:
        """Whether no further document is taken."""
        return documents >= self.documents if self.documents is not None else tokens >= (self.tokens or 0)


@dataclass(frozen=True)
class Taken:
    """A document that was taken."""

    document: "Document"
    score: float
    tokens: int

    def line(self, place: Mapping[str, int]) -> dict[str, Any]:
        """Its line of TEXTS_FILE.

        Args:
            place: where it came from; see `Pool.place`.
        """
        return {"id": self.document.id, **place, "score": self.score, "text": str(self.document)}


@dataclass(frozen=True)
class Choice:
    """What was taken."""

    taken: list[Taken]
    """The best first."""
    near: int
    """Documents passed over as copies of one with a higher score."""
    is_full: bool
    """Whether the budget was filled."""
    passed: tuple[int, ...]
    """Documents that each selection but the last passed on."""
    figures: tuple[dict[str, float], ...] = ()
    """What each selection says of how it has chosen."""

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return sum(document.tokens for document in self.taken)


def choose(
    selections: Sequence[Selection],
    given: Given,
    budget: Budget,
    keep: float,
    alike: Alike,
    count: CountTokens,
) -> Choice:
    """Chooses documents of a pool.

    Args:
        selections: each but the last passes on so much as `keep` says, or, if it is a filter, all that may be taken.
        given: the pool, the target, and what selections may look at.
        budget: how much is taken.
        keep: times the budget.
        alike: what counts as a near copy, of which one is taken.
        count: the numbers of tokens of texts.

    Raises:
        ConfigError, DataError: a selection cannot select here.
    """
    pool = given.pool
    passed: list[int] = []
    for selection in selections[:-1]:
        selection.learn(given)
        ids = _passed_on(selection, given, budget, keep)
        pool = pool.narrowed(ids)
        given = replace(given, pool=pool, permitted=np.sort(ids))
        passed.append(len(ids))
    last, times = selections[-1], SPARE
    last.learn(given)
    while True:
        offer = last.look_for(budget.room(times), budget.per_text)
        found = best(last, pool, given.target, _with_spare(budget.room(times)), as_it_is)
        choice = _fill(found.held, budget, Distinct(alike), count)
        if choice.is_full or (found.is_all and offer != "more"):
            figures = tuple(selection.figures() for selection in selections)
            is_full = choice.is_full or offer == "enough"
            return replace(choice, is_full=is_full, passed=tuple(passed), figures=figures)
        times *= 2
        log("many of the best documents are near copies, or have long tokens: the pool is read again with more room")


def _with_spare(room: Room) -> Room:
    """So much, and HELD."""
    return replace(room, characters=max(room.characters or 0, HELD))


def _passed_on(selection: Selection, given: Given, budget: Budget, keep: float) -> np.ndarray:
    """Ids of the documents that are left to the next selection, int64: memory holds no texts."""
    if selection.is_filter():
        return permitted_ids(selection, given.pool, given.target)
    room, times = budget.room(keep), keep
    while True:
        offer = selection.look_for(budget.room(times), ceil(keep * budget.per_text) if budget.per_text else None)
        found = best(selection, given.pool, given.target, room, attrgetter("id"))
        if offer != "more" or not found.is_all:
            return np.array([entry.held for entry in found.held], np.int64)
        times *= 2


def _fill(held: Sequence[Ranked], budget: Budget, distinct: Distinct, count: CountTokens) -> Choice:
    """Takes the best texts that are no near copies, until the budget is full."""
    taken: list[Taken] = []
    near, tokens = 0, 0
    for entry, is_new, number in _looked_at(sorted(held, reverse=True), distinct, count):
        near += not is_new
        if is_new:
            tokens += number
            taken.append(Taken(entry.held, entry.score, number))
        if budget.is_full(len(taken), tokens):
            return Choice(taken, near, True, ())
    return Choice(taken, near, False, ())


def _looked_at(ranked: Sequence[Ranked], distinct: Distinct, count: CountTokens) -> Iterator[tuple[Ranked, bool, int]]:
    """Each text, whether it is no copy of one before, and its number of tokens."""
    for some in chunks(ranked, attrgetter("characters")):
        texts = [str(entry.held) for entry in some]
        yield from zip(some, distinct.are_new(texts), count(texts), strict=True)


class TokenCounter:
    """Counts tokens, the special tokens of each text included.

    Args:
        pretrained: has the tokenizer.
        ends: whether documents end with the end-of-text token.
    """

    def __init__(self, pretrained: Pretrained, ends: bool) -> None:
        tokenizer = load_text_tokenizer(pretrained)
        self._quick = QuickTokenizer(tokenizer.backend_tokenizer)
        self._end = tokenizer.eos_token_id if ends else None

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text."""
        found = self._quick(texts).lists(IDS)
        return [len(ids) + (self._end is not None and ids[-1:].tolist() != [self._end]) for ids in found]
