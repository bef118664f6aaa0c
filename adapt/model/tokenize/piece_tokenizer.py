"""Tokenizes texts by pieces: each text is cut, and the library tokenizes each different piece once.

A table of bounded size holds the tokens of earlier pieces. If offsets and words of tokens are needed, a piece that
begins with a blank is tokenized with a letter before it: RoBERTa's tokenizer leaves the blank before a word out of the
token's offsets, except at the beginning of its input. Texts that begin with a blank are not cut then.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
from tokenizers import Tokenizer

from adapt.model.tokenize.cuts import TextPieces, cut, table_of
from adapt.model.tokenize.library_calls import WordsOf, by_library
from adapt.model.tokenize.ragged import BEGINS, ENDS, SPECIAL, Ragged

MOST = 2**19
"""Pieces that are kept: some 130 MB of a process, when full."""
LONGEST = 96
"""Bytes of a piece that is kept, as UTF-8. Longer ones hardly come again."""


class PieceTable:
    """Numbers for pieces, and their tokens by number.

    Args:
        encode: gives the tokens of pieces.
        fixed: lists that have the first numbers, for good.
        most: pieces that are kept.
    """

    def __init__(self, encode: Callable[[list[str]], Ragged], fixed: Ragged, most: int = MOST) -> None:
        self._encode, self._most = encode, most
        self._numbers: dict[bytes, int] = {}
        self._tokens = fixed
        self._fixed = len(fixed.bounds) - 1
        self._uses = np.zeros(self._fixed, np.int32)
        """In how many batches each piece came, of late."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, pieces: list[bytes]) -> np.ndarray:
        """The number of each of the pieces, which are different ones. It holds until the next call."""
        if len(self._numbers) > self._most:
            self._forget()
        found = list(map(self._numbers.get, pieces))
        if None in found:
            new = [piece for piece, number in zip(pieces, found, strict=True) if number is None]
            self._add(new)
            found = list(map(self._numbers.__getitem__, pieces))
        numbers = np.array(found, np.int64)
        self._uses[numbers] += 1
        return numbers

    def tokens(self, numbers: np.ndarray) -> Ragged:
        """The tokens of pieces by their numbers."""
        return self._tokens.take(numbers)

    def _add(self, pieces: Sequence[bytes]) -> None:
        first = len(self._tokens.bounds) - 1
        self._tokens = Ragged.joined([self._tokens, self._encode([piece.decode() for piece in pieces])])
        self._numbers.update(zip(pieces, range(first, first + len(pieces)), strict=True))
        self._uses = np.concatenate([self._uses, np.zeros(len(pieces), np.int32)])

    def _forget(self) -> None:
        """Keeps those that came most often, half as many as may be, and of those that came as often the newest."""
        kept = [piece for piece in self._numbers if len(piece) <= LONGEST]
        numbers = np.fromiter(map(self._numbers.__getitem__, kept), np.int64, len(kept))
        order = np.argsort(self._uses[numbers], kind="stable")[-(self._most // 2) :]
        self._numbers = {kept[place]: self._fixed + rank for rank, place in enumerate(order.tolist())}
        chosen = np.concatenate([np.arange(self._fixed), numbers[order]])
        self._tokens, self._uses = self._tokens.take(chosen), self._uses[chosen] // 2


BATCH_CHARACTERS = 4_000_000
"""Cut at once, about."""
Encode = Callable[[list[str]], Ragged]


class PieceTokenizer:
    """Tokenizes texts by pieces, with special tokens. It gives what the library gives, where the rules allow it.

    Args:
        backend: the tokenizer.
        rules: of `adapt.model.tokenize.cuts`.
        words: as in `adapt.model.tokenize.library_calls.by_library`.
        encode: gives the tokens of pieces; the library does by default.
        most: pieces that are remembered.
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
        """The tokens of each text.

        Raises:
            UnicodeEncodeError: a text holds half a surrogate pair.
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
        found = cut(texts, self._allowed)
        numbers = self.table.numbers(found.pieces.dictionary.to_pylist())
        framed, prefixes, suffixes = _framed(found, numbers[found.pieces.indices.to_numpy()])
        tokens = self.table.tokens(framed)
        if BEGINS in tokens.columns:
            places = np.zeros(len(framed), np.int64)
            places[_between(prefixes, suffixes, len(framed))] = found.places
            shifts = np.repeat(places, np.diff(tokens.bounds))
            shifts[tokens.columns[SPECIAL]] = 0
            for name in (BEGINS, ENDS):
                tokens.columns[name][:] += shifts
        ends = tokens.bounds[suffixes + 1]
        return Ragged(np.concatenate([np.zeros(1, np.int64), ends]), tokens.columns)


def text_batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts in batches, at least one."""
    begin = size = 0
    for number, text in enumerate(texts):
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield texts[begin : number + 1]
            begin, size = number + 1, 0
    if begin < len(texts) or not texts:
        yield texts[begin:]


def _frame(backend: Tokenizer, words: WordsOf | None) -> Ragged:
    """The special tokens before and after a text, as lists 0 and 1."""
    encoding = backend.encode("a")
    inner = np.flatnonzero(~np.array(encoding.special_tokens_mask, bool))
    first, last = (inner[0], inner[-1] + 1) if len(inner) else (len(encoding), len(encoding))
    whole = by_library(backend, ["a"], words)
    tokens = Ragged(np.arange(len(encoding) + 1), whole.columns).take(
        np.concatenate([np.arange(first), np.arange(last, len(encoding))])
    )
    return Ragged(np.array([0, first, first + len(encoding) - last]), tokens.columns)


def _framed(found: TextPieces, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of all pieces with each text's special tokens, and where the latter stand: before and after the text."""
    texts = np.arange(len(found.firsts) - 1)
    prefixes = found.firsts[:-1] + 2 * texts
    suffixes = found.firsts[1:] + 2 * texts + 1
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
    """Whether a text or piece begins with a blank or the end of a line."""
    return text.startswith((" ", "\n"))


def placed_pieces(backend: Tokenizer, pieces: Sequence[str], words: WordsOf) -> Ragged:
    """All columns of pieces that stand in the midst of a text, without special tokens.

    Args:
        backend: the tokenizer.
        pieces: of texts.
        words: as in `adapt.model.tokenize.library_calls.by_library`.
    """
    anchored = np.array([starts_blank(piece) for piece in pieces], bool)
    texts = [_ANCHOR + piece if before else piece for piece, before in zip(pieces, anchored, strict=True)]
    tokens = by_library(backend, texts, words, special=False)
    lengths = np.diff(tokens.bounds)
    dropped = anchored * len(backend.encode(_ANCHOR, add_special_tokens=False))
    places = np.arange(tokens.bounds[-1]) - np.repeat(tokens.bounds[:-1], lengths)
    kept = places >= np.repeat(dropped, lengths)
    columns = {name: values[kept] for name, values in tokens.columns.items()}
    for name in (BEGINS, ENDS):
        columns[name] -= np.repeat(anchored * len(_ANCHOR), lengths)[kept]
    return Ragged.of(lengths - dropped, columns)
