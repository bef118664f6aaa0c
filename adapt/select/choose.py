"""Chooses documents from a pool. Each selection except the last narrows the pool, and the last fills the budget.

A process reads one item (part of the pool) at a time. It discards a document if better documents of the item already
reach the limits on held texts (`Room`), or if the document is worse than the worst document that the calling process
held when the item was started. The result does not depend on which process reads which item, and few documents of a
large pool are sent between processes.

Of several near copies, only one is taken. Each text is compared with the texts taken before it, by the rules of stage
`dedup`: two texts are copies if they are equal after normalisation, or if the estimated Jaccard similarity of their
shingles, found by bands of MinHash signatures, reaches the threshold. Texts are taken in order of score, so the best of
several copies is kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import tee, zip_longest
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_128_intdigest

from adapt.corpus.minhash import DuplicateRule, band_hashes, estimated_jaccard, signatures
from adapt.corpus.shingles import normalised
from adapt.model.locate import Pretrained
from adapt.model.tokenize.piece_tokenizer import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer, text_tokenizer
from adapt.select.grams import chunks
from adapt.select.pool import Document, Pool
from adapt.select.selection import NEVER, Given, NoOptions, Random, Room, Selection
from adapt.support.errors import DataError
from adapt.terminal.console import log

TOLD_AFTER = 1_000_000
"""Amount of text after which a process reports progress [characters]."""


class Ranked(NamedTuple):
    """A candidate document. Candidates sort by score in ascending order."""

    score: float
    before: int
    """Negative id of the document, so that the first of several documents with equal scores counts as the best."""
    characters: int
    held: Any
    """The document, or the part of it that is kept in memory."""


@dataclass
class Best:
    """The best documents so far. Memory holds only the documents that are needed to reach the limits in `room`."""

    room: Room
    floor: Ranked | None = None
    """Worst document that the calling process holds, if its held documents already reach the limits. Worse documents
    are not added. None if that process has not reached the limits."""
    held: list[Ranked] = field(default_factory=list)
    """Held documents as a heap, with the worst document first."""
    characters: int = 0
    is_all: bool = True
    """Whether all added documents are still held: no document was discarded because of the limits."""

    @property
    def worst(self) -> Ranked | None:
        """Document that new documents must beat: the worst held document, or `floor` if no document was discarded.

        None if every document is added.
        """
        return self.floor if self.is_all else self.held[0]

    @property
    def least(self) -> float:
        """Lowest score with which a document is added.

        The score is NEVER (minus infinity) if every document is added.
        """
        return worst.score if (worst := self.worst) else NEVER

    def hint(self) -> Ranked | None:
        """Returns the document `worst` without its text. Other processes use it to discard worse documents early."""
        return self.worst and self.worst._replace(held=None)

    def add(self, entry: Ranked) -> None:
        """Adds a document, and discards the worst documents beyond the limits."""
        if (worst := self.worst) and entry < worst:
            return
        heappush(self.held, entry)
        self.characters += entry.characters
        while len(self.held) > 1 and self.room.is_over(len(self.held), self.characters, self.held[0].characters):
            self.characters -= heappop(self.held).characters
            self.is_all = False

    def merge(self, other: "Best") -> None:
        """Adds the best documents that were found in another part of the pool."""
        for entry in other.held:
            self.add(entry)
        self.is_all = self.is_all and other.is_all


def best(
    selection: Selection,
    pool: Pool,
    target: Sequence[str],
    room: Room,
    kept: Callable[[Document], Any] = str,
) -> Best:
    """Finds the documents with the highest scores. `Selection.learn` must have been called before.

    `kept` returns the part of a document that is held, and must be picklable.

    Raises:
        DataError: a score is not a number.
    """
    found = Best(room)
    look = FindBest(selection, target, room, kept)
    for some in pool.visit(look, found.hint, on_device=bool(selection.models())):
        found.merge(some)
    return found


def permitted_ids(selection: Selection, pool: Pool, target: Sequence[str]) -> np.ndarray:
    """Returns the ids of all documents that the selection permits, int64, in order. No texts are kept in memory.

    Raises:
        DataError: a score is not a number.
    """
    found = pool.visit(FindPermitted(selection, target), on_device=bool(selection.models()))
    return np.concatenate([np.zeros(0, np.int64), *found])


@dataclass(frozen=True)
class FindBest:
    """Finds the best documents of an item, the part of the pool that one process reads.

    The argument `hint` is the worst document that the calling process held when the item was started.
    """

    selection: Selection
    target: Sequence[str]
    room: Room
    kept: Callable[[Document], Any]

    def __call__(self, documents: Iterator[Document], hint: Ranked | None) -> Iterator[Best | None]:
        """Yields None now and then to report progress, and the best documents at the end of the item."""
        found, characters = Best(self.room, hint), 0
        for score, document in scored(self.selection, documents, self.target):
            characters += len(document)
            if score >= found.least:  # the condition is false for nearly all documents of a large pool
                found.add(Ranked(score, -document.id, len(document), document))
            if characters >= TOLD_AFTER:
                characters = 0
                yield None
        found.floor = None
        found.held = [entry._replace(held=self.kept(entry.held)) for entry in found.held]
        yield found


@dataclass(frozen=True)
class FindPermitted:
    """Finds all documents of an item (the part of the pool that one process reads) that may be selected."""

    selection: Selection
    target: Sequence[str]

    def __call__(self, documents: Iterator[Document], hint: None) -> Iterator[np.ndarray]:
        """Yields the ids of the documents that may be selected."""
        scores = scored(self.selection, documents, self.target)
        yield np.fromiter((document.id for _, document in scores), np.int64)


def scored(
    selection: Selection, documents: Iterable[Document], target: Iterable[str]
) -> Iterator[tuple[float, Document]]:
    """Yields each document that may be selected, with its score. The score of other documents is -inf.

    Raises:
        DataError: a score is not a number, or there are more or fewer scores than documents.
    """
    texts, read = tee(documents)
    scores: Iterator[Any] = selection.scores(read, target)
    # `scores` comes first in zip_longest, because computing a score takes the text from the iterator
    for place, (score, text) in enumerate(zip_longest(scores, texts)):
        if score is None or text is None:
            raise DataError(
                f"{type(selection).__name__} gives {'fewer' if score is None else 'more'} scores than the pool has"
                f" texts: only the first {place} texts and scores match",
                "correct the selection: it must give one score for each text, in the order of the pool",
            )
        if score != score:
            raise DataError(
                f"{type(selection).__name__} gives the text with id {text.id} of the pool the score NaN",
                "correct the selection: each score must be a number; a text with the score -inf is never selected",
            )
        if score > NEVER:
            yield score, text


def as_it_is(document: Document) -> Document:
    """Returns the document unchanged, for callers that hold whole documents."""
    return document


def highest(selection: Selection, pool: Pool, target: Sequence[str], count: int) -> list[tuple[int, str, float]]:
    """Returns the `count` texts with the highest scores, or all permitted texts if there are fewer.

    Each text has its id and score. The best text is first.
    """
    found = best(selection, pool, target, Room(documents=count)).held
    return [(-entry.before, entry.held, entry.score) for entry in sorted(found, reverse=True)]


def random_draw(seed: int, stream: int) -> Random:
    """Returns a `Random` selection that draws its numbers from a given random stream; see `draws_at`."""
    draw = Random(NoOptions(), seed)
    draw.stream = stream
    return draw


def sampled(pool: Pool, count: int, seed: int, stream: int) -> list[Document]:
    """Reads the pool once, and returns `count` random documents (all if there are fewer) in the pool's order."""
    found = best(random_draw(seed, stream), pool, (), Room(documents=count), as_it_is)
    return sorted((entry.held for entry in found.held), key=lambda document: document.id)


class Distinct:
    """Remembers which texts were taken, and recognises copies of these texts."""

    def __init__(self, alike: DuplicateRule) -> None:
        self._alike = alike
        self._texts: set[int] = set()
        self._signatures: list[np.ndarray] = []
        self._buckets: dict[int, list[int]] = {}
        """Indices of the signatures that contain a band hash, keyed by this hash."""

    def are_new(self, texts: Sequence[str]) -> list[bool]:
        """Returns whether each text is new: it copies neither a taken text nor an earlier text in the list.

        New texts count as taken.
        """
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
"""Text held in memory, as a multiple of the budget. It is above 1, because near copies among the held texts are not
taken."""
HELD = 2_000_000
"""Minimum amount of text held in memory [characters], so that small selections seldom need to read the pool again."""
CHARACTERS = 6
"""Assumed upper limit of the mean token length [characters]. If tokens are longer, the pool is read again, and more
texts are held."""
CountTokens = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class Budget:
    """Size of the selection: a number of documents or a number of tokens."""

    documents: int | None = None
    tokens: int | None = None
    """Number of tokens of the selection. Documents are taken until their tokens reach or exceed this number."""
    per_text: int | None = None
    """Number of documents per target text. None if the number of documents was not computed from a number per target
    text."""

    def room(self, times: float) -> Room:
        """Returns limits such that the texts held in memory are enough for `times` times the budget."""
        if self.documents is not None:
            return Room(documents=ceil(times * self.documents))
        return Room(characters=ceil(times * CHARACTERS * (self.tokens or 0)))

    def is_full(self, documents: int, tokens: int) -> bool:
        """Returns whether this many documents or tokens fill the budget."""
        return documents >= self.documents if self.documents is not None else tokens >= (self.tokens or 0)


@dataclass(frozen=True)
class Taken:
    """A selected document, with its score and number of tokens."""

    document: Document
    score: float
    tokens: int

    def line(self, place: Mapping[str, int]) -> dict[str, Any]:
        """Returns the document's record in TEXTS_FILE.

        `place` is the origin of the document; see `Pool.place`.
        """
        return {"id": self.document.id, **place, "score": self.score, "text": str(self.document)}


@dataclass(frozen=True)
class Choice:
    """The result of choosing documents."""

    taken: list[Taken]
    """Selected documents, with the highest score first."""
    near: int
    """Number of documents that were skipped because they copy a document with a higher score."""
    is_full: bool
    """Whether the budget was filled."""
    passed: tuple[int, ...]
    """Number of documents that each selection, except the last, passed on to the next selection."""
    figures: tuple[dict[str, float], ...] = ()
    """Metrics of each selection, from `Selection.figures`."""

    @property
    def tokens(self) -> int:
        """Number of tokens of all selected documents."""
        return sum(document.tokens for document in self.taken)


def choose(
    selections: Sequence[Selection],
    given: Given,
    budget: Budget,
    keep: float,
    alike: DuplicateRule,
    count: CountTokens,
) -> Choice:
    """Chooses documents from a pool.

    Each selection, except the last one, passes its best documents on to the next: `keep` times the budget. A filter
    passes on all documents that it does not exclude. `alike` decides which texts are copies.

    Raises:
        ConfigError, DataError: a selection cannot select from this pool.
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
            _say_excluded(last, found)
            figures = tuple(selection.figures() for selection in selections)
            is_full = choice.is_full or offer == "enough"
            return replace(choice, is_full=is_full, passed=tuple(passed), figures=figures)
        times *= 2
        log(
            "the best documents do not fill the budget, because many are near copies or have fewer tokens than"
            " expected: reading the pool again with more candidates"
        )


def _with_spare(room: Room) -> Room:
    """Returns the limits for held texts, raised to at least HELD characters."""
    return replace(room, characters=max(room.characters or 0, HELD))


def _passed_on(selection: Selection, given: Given, budget: Budget, keep: float) -> np.ndarray:
    """Returns the ids of the documents that a selection passes on to the next selection, int64.

    No texts are kept in memory.
    """
    if selection.is_filter():
        return permitted_ids(selection, given.pool, given.target)
    room, times = budget.room(keep), keep
    while True:
        offer = selection.look_for(budget.room(times), ceil(keep * budget.per_text) if budget.per_text else None)
        found = best(selection, given.pool, given.target, room, attrgetter("id"))
        if offer != "more" or not found.is_all:
            _say_excluded(selection, found)
            return np.array([entry.held for entry in found.held], np.int64)
        times *= 2


def _say_excluded(selection: Selection, found: Best) -> None:
    """Logs how many of the documents that a search found are not in the pool.

    The index contains near copies of held-out text, because only the pool compares documents with runs of words.
    """
    excluded = selection.documents_found() - len(found.held)
    if found.is_all and excluded > 0:
        log(
            f"{excluded:,} of the {selection.documents_found():,} documents found by {type(selection).__name__} contain"
            " held-out text, so they are not selected"
        )


def _fill(held: Sequence[Ranked], budget: Budget, distinct: Distinct, count: CountTokens) -> Choice:
    """Takes the best texts, without near copies, until the budget is full."""
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
    """Yields each candidate, whether it is new (no copy of an earlier candidate), and its number of tokens."""
    for some in chunks(ranked, attrgetter("characters")):
        texts = [str(entry.held) for entry in some]
        yield from zip(some, distinct.are_new(texts), count(texts), strict=True)


class TokenCounter:
    """Counts the tokens of texts, including special tokens.

    `ends` says whether documents end with the end-of-text token.
    """

    def __init__(self, pretrained: Pretrained, ends: bool) -> None:
        tokenizer = text_tokenizer(pretrained)
        self._quick = QuickTokenizer(tokenizer.backend)
        self._end = tokenizer.end if ends else None

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each text, including special tokens."""
        found = self._quick(texts).lists(IDS)
        return [len(ids) + (self._end is not None and ids[-1:].tolist() != [self._end]) for ids in found]
