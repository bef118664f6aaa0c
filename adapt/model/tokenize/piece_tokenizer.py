"""Tokenizes texts by pieces: cuts each text into pieces, and tokenizes each distinct piece only once.

A table of bounded size stores the tokens of earlier pieces. If offsets and word starts are needed, a letter is put
before a piece that begins with a space, as if the piece were in the middle of a text. Otherwise offsets would
differ: RoBERTa's tokenizer leaves the space before a word out of the token's offsets, except at the beginning of its
input. For the same reason, the library then tokenizes whole texts that begin with a space.

Token lists of the `tokenizers` library are converted to flat arrays. Plain words are passed directly to the
tokenizer's model (such as BPE or WordPiece), because the other steps of the library take most of the time. How a plain
word is converted for the model (prefix and lower case) is derived from one word, and checked against the library for
many words.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, pairwise
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from adapt.model.tokenize.cuts import TextPieces, cut, table_of

IDS, WORDS, BEGINS, ENDS, SPECIAL = "ids", "words", "begins", "ends", "special"
"""Columns of tokenized texts. The id of each token is always present. The other columns are only present if word starts
are needed: whether a word starts with the token, the offsets of the token's beginning and end in the text [characters],
and whether it is a special token. Special tokens have the offsets (0, 0)."""
TYPES = {IDS: np.uint32, WORDS: np.bool_, BEGINS: np.int64, ENDS: np.int64, SPECIAL: np.bool_}


@dataclass(frozen=True)
class Ragged:
    """Lists in flat arrays. In each column, list i has the values from index bounds[i] up to bounds[i + 1]."""

    bounds: np.ndarray
    """Index at which each list begins, followed by the index at which the last list ends, int64 [lists + 1]."""
    columns: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, lengths: Sequence[int] | np.ndarray, columns: Mapping[str, Sequence[int] | np.ndarray]) -> "Ragged":
        """Builds lists from their lengths, and from the concatenated lists of each column."""
        bounds = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return cls(bounds, {name: np.asarray(values, TYPES[name]) for name, values in columns.items()})

    @classmethod
    def joined(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """Concatenates one or more objects of this class."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([np.diff(part.bounds) for part in parts])
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        return cls.of(lengths, columns)

    def take(self, numbers: np.ndarray) -> "Ragged":
        """Returns the lists with these indices, in the order of the indices."""
        begins = self.bounds[numbers]
        lengths = self.bounds[numbers + 1] - begins
        bounds = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        indices = np.repeat(begins - bounds[:-1], lengths)
        indices += np.arange(bounds[-1])
        return Ragged(bounds, {name: values[indices] for name, values in self.columns.items()})

    def where(self, chosen: np.ndarray) -> "Ragged":
        """Returns the lists for which `chosen` (bool [lists]) is True. Faster than `take` if most lists are chosen."""
        if chosen.all():
            return self
        lengths = np.diff(self.bounds)
        inside = np.repeat(chosen, lengths)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[chosen])])
        return Ragged(bounds, {name: values[inside] for name, values in self.columns.items()})

    def lists(self, name: str) -> list[np.ndarray]:
        """Returns all lists of a column, as views."""
        values, ends = self.columns[name], self.bounds.tolist()
        return [values[begin:end] for begin, end in pairwise(ends)]

    def same(self, other: "Ragged") -> bool:
        """Whether this object and `other` have the same lists in all columns."""
        return np.array_equal(self.bounds, other.bounds) and all(
            np.array_equal(values, other.columns[name]) for name, values in self.columns.items()
        )


WordsOf = Callable[[str, Encoding], np.ndarray]
"""A function that takes a text and its encoding, and returns whether a word starts at each token, bool [tokens]."""


def by_library(backend: Tokenizer, texts: Sequence[str], words: WordsOf | None, special: bool = True) -> Ragged:
    """Tokenizes texts with the library.

    Args:
        backend: the tokenizer.
        texts: whole texts, or pieces of them.
        words: function that finds the starts of words. With it, the result has all columns. If None, it only has ids.
        special: whether to add special tokens.
    """
    if words is None:
        encodings = backend.encode_batch_fast(texts, add_special_tokens=special)
        return of_ids([encoding.ids for encoding in encodings])
    encodings = backend.encode_batch(texts, add_special_tokens=special)
    return _described(texts, encodings, words)


def handed(backend: Tokenizer, text: str) -> list[str]:
    """Returns the words that the tokenizer's model receives for a text, after normalization and pre-tokenization."""
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]


def of_ids(lists: Sequence[Sequence[int]]) -> Ragged:
    """Converts lists of token ids from the library to flat arrays."""
    return Ragged.of([len(ids) for ids in lists], {IDS: _flat(lists, np.uint32)})


def _described(texts: Sequence[str], encodings: Sequence[Encoding], words: WordsOf) -> Ragged:
    offsets = _flat((offset for encoding in encodings for offset in encoding.offsets), np.int64).reshape(-1, 2)
    starts = [words(*pair) for pair in zip(texts, encodings, strict=True)]
    columns = {
        IDS: _flat((encoding.ids for encoding in encodings), np.uint32),
        WORDS: np.concatenate([np.zeros(0, bool), *starts]),
        BEGINS: offsets[:, 0],
        ENDS: offsets[:, 1],
        SPECIAL: _flat((encoding.special_tokens_mask for encoding in encodings), np.bool_),
    }
    return Ragged.of([len(encoding) for encoding in encodings], columns)


def _flat(lists: Iterable[Sequence[int]], kind: type) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), kind)


PLAIN = (r" ?[!-;=-Z\\\]-~]+", r" ?[A-Za-z]+")
"""Patterns of plain words. The first pattern also matches digits and ASCII punctuation, except `<` and `[`,
which begin special tokens."""
_PROBE = "Zq"


@dataclass(frozen=True)
class Plain:
    """Recognizes plain words, and converts them to the form that the tokenizer's model receives."""

    pattern: str = r"(?!)"
    """Pattern that matches a plain piece completely. By default, it matches nothing."""
    bare: str = ""
    """Prefix that the tokenizer adds to a word without a leading space."""
    blank: str = ""
    """Prefix that replaces the space before a word."""
    lower: bool = False
    """Whether words are lower-cased."""

    @cached_property
    def _fits(self) -> Callable[[str], Any]:
        return re.compile(self.pattern).fullmatch

    def word_of(self, piece: str) -> str | None:
        """Converts a plain word to the form that the model receives. Returns None for other pieces."""
        if not self._fits(piece):
            return None
        word = piece.lower() if self.lower else piece
        return self.blank + word[1:] if word[0] == " " else self.bare + word


class DirectWords:
    """Tokenizes pieces without special tokens, and passes plain words directly to the tokenizer's model.

    Args:
        backend: the tokenizer.
        plain: recognizes plain words. The library tokenizes other pieces.
    """

    def __init__(self, backend: Tokenizer, plain: Plain) -> None:
        self._backend, self._model, self._plain = backend, backend.model, plain

    def __call__(self, pieces: Sequence[str]) -> Ragged:
        """Returns the token ids of pieces."""
        return of_ids(
            [
                self._backend.encode(piece, add_special_tokens=False).ids
                if (word := self._plain.word_of(piece)) is None
                else [token.id for token in self._model.tokenize(word)]
                for piece in pieces
            ]
        )


def plain_of(backend: Tokenizer, pieces: Iterable[str]) -> Plain:
    """Returns the widest class of plain words for which `word_of` computes the same model input as the library.

    Args:
        backend: the tokenizer.
        pieces: words for which both inputs are compared.
    """
    expected = {piece: handed(backend, piece) for piece in pieces}
    bare, blank = _before(backend, _PROBE), _before(backend, f" {_PROBE}")
    if bare is not None and blank is not None and bare[1] == blank[1]:
        for pattern in PLAIN:
            plain = Plain(pattern, bare[0], blank[0], bare[1])
            words = {piece: plain.word_of(piece) for piece in expected}
            if all(word is None or expected[piece] == [word] for piece, word in words.items()):
                return plain
    return Plain()


def _before(backend: Tokenizer, word: str) -> tuple[str, bool] | None:
    """Returns the prefix that the tokenizer adds before the word `_PROBE`, and whether it lower-cases the word.

    Returns None if the tokenizer changes the word in any other way. `word` is `_PROBE`, with or without a space before.
    """
    words = handed(backend, word)
    if len(words) != 1 or not words[0].lower().endswith(_PROBE.lower()):
        return None
    return words[0][: -len(_PROBE)], words[0].endswith(_PROBE.lower())


MOST = 2**19
"""Maximum number of pieces in the table. A full table takes about 130 MB of memory."""
LONGEST = 96
"""Pieces longer than this [bytes of UTF-8] are dropped when the table is full, because they rarely occur again."""


class PieceTable:
    """Assigns a number to each distinct piece, and stores the piece's tokens under this number.

    Args:
        encode: function that tokenizes pieces.
        fixed: lists of tokens that get the first numbers and are never dropped.
        most: maximum number of pieces in the table.
    """

    def __init__(self, encode: Callable[[list[str]], Ragged], fixed: Ragged, most: int = MOST) -> None:
        self._encode, self._most = encode, most
        self._numbers: dict[bytes, int] = {}
        self._tokens = fixed
        self._fixed = len(fixed.bounds) - 1
        self._uses = np.zeros(self._fixed, np.int32)
        """Number of recent batches in which each piece occurred, indexed by the piece's number."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, pieces: list[bytes]) -> np.ndarray:
        """Returns the numbers of distinct pieces, and tokenizes new pieces. The next call may change the numbers."""
        if len(self._numbers) > self._most:
            self._forget()
        known = list(map(self._numbers.get, pieces))
        if None in known:
            new = [piece for piece, number in zip(pieces, known, strict=True) if number is None]
            self._add(new)
            known = list(map(self._numbers.__getitem__, pieces))
        numbers = np.array(known, np.int64)
        self._uses[numbers] += 1
        return numbers

    def tokens(self, numbers: np.ndarray) -> Ragged:
        """Returns the tokens of pieces, given their numbers from the method `numbers`."""
        return self._tokens.take(numbers)

    def _add(self, pieces: Sequence[bytes]) -> None:
        first = len(self._tokens.bounds) - 1
        self._tokens = Ragged.joined([self._tokens, self._encode([piece.decode() for piece in pieces])])
        self._numbers.update(zip(pieces, range(first, first + len(pieces)), strict=True))
        self._uses = np.concatenate([self._uses, np.zeros(len(pieces), np.int32)])

    def _forget(self) -> None:
        """Drops long pieces, then rare pieces, until the table is half full. Among equally rare ones, oldest first."""
        short = [piece for piece in self._numbers if len(piece) <= LONGEST]
        numbers = np.fromiter(map(self._numbers.__getitem__, short), np.int64, len(short))
        order = np.argsort(self._uses[numbers], kind="stable")[-(self._most // 2) :]
        self._numbers = {short[index]: self._fixed + rank for rank, index in enumerate(order.tolist())}
        chosen = np.concatenate([np.arange(self._fixed), numbers[order]])
        self._tokens, self._uses = self._tokens.take(chosen), self._uses[chosen] // 2


BATCH_CHARACTERS = 4_000_000
"""Approximate number of characters in each batch of texts."""
Encode = Callable[[list[str]], Ragged]


class PieceTokenizer:
    """Tokenizes texts by pieces, with special tokens. If the tokenizer allows the rules, tokens equal the library's.

    Args:
        backend: the tokenizer.
        rules: names of rules of `adapt.model.tokenize.cuts`.
        words: see `adapt.model.tokenize.piece_tokenizer.by_library`.
        encode: function that tokenizes pieces. By default, the library tokenizes them.
        most: maximum number of pieces in the table.
    """

    def __init__(
        self,
        backend: Tokenizer,
        rules: Iterable[str],
        words: WordsOf | None = None,
        encode: Encode | None = None,
        most: int = MOST,
    ) -> None:
        self._allowed = table_of(rules)
        self._backend, self._words = backend, words
        self.table = PieceTable(encode or self._by_library, _frame(backend, words), most)

    def __call__(self, texts: Sequence[str]) -> Ragged:
        """Returns the tokens of each text.

        Raises:
            UnicodeEncodeError: a text contains a lone surrogate.
        """
        aside = np.array([self._words is not None and starts_blank(text) for text in texts], bool)
        if not aside.any():
            return Ragged.joined([self._batch(batch) for batch in text_batches(texts)])
        rest = self(list(compress(texts, ~aside)))
        those = by_library(self._backend, list(compress(texts, aside)), self._words)
        order = np.argsort(np.argsort(aside, kind="stable"))
        return Ragged.joined([rest, those]).take(order)

    def _by_library(self, pieces: list[str]) -> Ragged:
        if self._words is None:
            return by_library(self._backend, pieces, None, special=False)
        return placed_pieces(self._backend, pieces, self._words)

    def _batch(self, texts: Sequence[str]) -> Ragged:
        parts = cut(texts, self._allowed)
        numbers = self.table.numbers(parts.pieces.dictionary.to_pylist())
        framed, prefixes, suffixes = _framed(parts, numbers[parts.pieces.indices.to_numpy()])
        tokens = self.table.tokens(framed)
        if BEGINS in tokens.columns:
            offsets = np.zeros(len(framed), np.int64)
            offsets[_between(prefixes, suffixes, len(framed))] = parts.places
            shifts = np.repeat(offsets, np.diff(tokens.bounds))
            shifts[tokens.columns[SPECIAL]] = 0
            for name in (BEGINS, ENDS):
                tokens.columns[name][:] += shifts
        ends = tokens.bounds[suffixes + 1]
        return Ragged(np.concatenate([np.zeros(1, np.int64), ends]), tokens.columns)


def text_batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divides texts into batches of about `BATCH_CHARACTERS`. Without texts, yields one empty batch."""
    begin = size = 0
    for number, text in enumerate(texts):
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield texts[begin : number + 1]
            begin, size = number + 1, 0
    if begin < len(texts) or not texts:
        yield texts[begin:]


def _frame(backend: Tokenizer, words: WordsOf | None) -> Ragged:
    """Returns two lists of tokens: the special tokens before a text, and the special tokens after a text."""
    encoding = backend.encode("a")
    inner = np.flatnonzero(~np.array(encoding.special_tokens_mask, bool))
    first, last = (inner[0], inner[-1] + 1) if len(inner) else (len(encoding), len(encoding))
    whole = by_library(backend, ["a"], words)
    tokens = Ragged(np.arange(len(encoding) + 1), whole.columns).take(
        np.concatenate([np.arange(first), np.arange(last, len(encoding))])
    )
    return Ragged(np.array([0, first, first + len(encoding) - last]), tokens.columns)


def _framed(parts: TextPieces, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inserts number 0 before and number 1 after the pieces of each text.

    Under these two numbers, the table stores the special tokens before and after a text.

    Returns:
        The extended array of numbers, and for each text the indices of its inserted 0 and its inserted 1.
    """
    texts = np.arange(len(parts.firsts) - 1)
    prefixes = parts.firsts[:-1] + 2 * texts
    suffixes = parts.firsts[1:] + 2 * texts + 1
    framed = np.empty(len(numbers) + 2 * len(texts), np.int64)
    framed[prefixes], framed[suffixes] = 0, 1
    framed[_between(prefixes, suffixes, len(framed))] = numbers
    return framed, prefixes, suffixes


def _between(prefixes: np.ndarray, suffixes: np.ndarray, size: int) -> np.ndarray:
    inner = np.ones(size, bool)
    inner[prefixes] = inner[suffixes] = False
    return inner


_ANCHOR = "a"


def starts_blank(text: str) -> bool:
    """Whether a text or piece begins with a space or a line end."""
    return text.startswith((" ", "\n"))


def placed_pieces(backend: Tokenizer, pieces: Sequence[str], words: WordsOf) -> Ragged:
    """Tokenizes pieces as if they were in the middle of a text, with all columns and without special tokens."""
    anchored = np.array([starts_blank(piece) for piece in pieces], bool)
    texts = [_ANCHOR + piece if before else piece for piece, before in zip(pieces, anchored, strict=True)]
    tokens = by_library(backend, texts, words, special=False)
    lengths = np.diff(tokens.bounds)
    dropped = anchored * len(backend.encode(_ANCHOR, add_special_tokens=False))
    indices = np.arange(tokens.bounds[-1]) - np.repeat(tokens.bounds[:-1], lengths)
    inside = indices >= np.repeat(dropped, lengths)
    columns = {name: values[inside] for name, values in tokens.columns.items()}
    for name in (BEGINS, ENDS):
        columns[name] -= np.repeat(anchored * len(_ANCHOR), lengths)[inside]
    return Ragged.of(lengths - dropped, columns)
