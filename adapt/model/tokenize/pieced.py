"""Tokenizing by pieces: texts are cut, and the tokens of each different piece looked up, or made once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
from tokenizers import Tokenizer

from adapt.model.tokenize.cuts import TextPieces, cut, table_of
from adapt.model.tokenize.library import WordsOf, by_library
from adapt.model.tokenize.placed import placed_pieces, starts_blank
from adapt.model.tokenize.ragged import BEGINS, ENDS, SPECIAL, Ragged
from adapt.model.tokenize.table import MOST, PieceTable

BATCH_CHARACTERS = 4_000_000
"""Cut at once, about."""
Encode = Callable[[list[str]], Ragged]


class PieceTokenizer:
    """Tokenizes texts by pieces, with special tokens. It gives what the library gives, where the rules allow it.

    Args:
        backend: the tokenizer.
        rules: of `adapt.model.tokenize.cuts`.
        words: as in `adapt.model.tokenize.library.by_library`.
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
            _move(tokens, places)
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


def _move(tokens: Ragged, places: np.ndarray) -> None:
    """Adds to the places of tokens in their pieces those of the pieces in their texts."""
    shifts = np.repeat(places, np.diff(tokens.bounds))
    shifts[tokens.columns[SPECIAL]] = 0
    for name in (BEGINS, ENDS):
        tokens.columns[name][:] += shifts
