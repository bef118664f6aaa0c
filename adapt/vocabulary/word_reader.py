"""Words as a tokenizer sees them: what it makes of a text before it looks for pieces, and the pieces of each."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from adapt.model.tokenize.allowed_cuts import allowed_rules, plain_words, probes
from adapt.model.tokenize.cuts import cut, table_of
from adapt.model.tokenize.library_calls import plain_of

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A piece that stands for a byte, in tokenizers that fall back to bytes."""
WORTH_CHUNKS = 300_000
"""So many different strings between blanks make it worth while to find out how they may be cut."""
NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character is shown as."""


@dataclass(frozen=True, slots=True)
class CountedWord:
    """A word of a corpus."""

    word: str
    """In the letters of the tokenizer's model, such as `Ġhepatitis` or `▁hepatitis`."""
    surface: str
    """As people write it."""
    count: int
    pieces: tuple[int, ...]
    """The ids of its pieces, in order."""
    unknown: bool
    """Whether a part of it is unknown to the tokenizer."""

    @property
    def saved(self) -> int:
        """Pieces that the corpus would save if the word were one token. An unknown word counts its letters."""
        return self.count * ((len(self.surface) if self.unknown else len(self.pieces)) - 1)


class WordReader:
    """Finds words and their pieces with the parts of a tokenizer: normaliser, pre-tokenizer, model, decoder.

    A word is what the pre-tokenizer leaves whole, as it stands after a blank. Tokenizers without one have words between
    blanks. No piece of a word reaches into the next, so a token for a word is a matter of that word alone.

    Args:
        backend: a tokenizer that takes special tokens by their letters (`adapt.model.tokenizer`).
    """

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self._normalizer, self._pre, self._model = backend.normalizer, backend.pre_tokenizer, backend.model
        self.lead = ""
        """What stands before a word: a blank, where that makes a difference."""
        self.lead = max(("", " "), key=lambda lead: self._fits(lead) * len("".join(self.words(lead + "b"))))

    def _fits(self, lead: str) -> bool:
        """Whether a word with this before it becomes what it is in a text."""
        return "".join(self.split("a b")).endswith("".join(self.split(lead + "b")))

    def words(self, chunk: str) -> list[str]:
        """The words of what stands between two blanks of a text."""
        return self.split(self.lead + chunk)

    def split(self, text: str) -> list[str]:
        """The words of a text that stands as it is: no blank is put before it."""
        if self._normalizer:
            text = self._normalizer.normalize_str(text)
        if self._pre is None:
            return [text] if text else []
        return [word for word, _ in self._pre.pre_tokenize_str(text)]

    def pieces(self, word: str) -> tuple[int, ...]:
        """The ids of a word's pieces."""
        return tuple(token.id for token in self._model.tokenize(word))

    @property
    def size(self) -> int:
        """Tokens that there are."""
        return self.backend.get_vocab_size()

    def knows(self, piece: str) -> bool:
        """Whether a piece is a token of the tokenizer."""
        return self.backend.token_to_id(piece) is not None

    def parts(self, piece: str) -> tuple[int, ...]:
        """The ids of the pieces of a part of a word, which may go on from another (`##itis`)."""
        prefix = self._continues
        if not prefix or not piece.startswith(prefix):
            return self.pieces(piece)
        left, found = piece[len(prefix) :], []
        while left:
            ends = range(len(left), 0, -1)
            known = ((end, self.backend.token_to_id(prefix + left[:end])) for end in ends)
            end, number = next(((end, number) for end, number in known if number is not None), (0, None))
            if number is None:
                return () if self.unknown is None else (self.unknown,)
            found.append(number)
            left = left[end:]
        return tuple(found)

    def keys(self) -> dict[str, int]:
        """All whole tokens as people write them, with a ▁ where one begins a word: the same in every family."""
        found: dict[str, int] = {}
        for token, number in self.backend.get_vocab(with_added_tokens=False).items():
            begins = not token.startswith(self._continues) if self._continues else token[:1] in ("Ġ", "▁")
            surface = self.surface(token.removeprefix(self._continues))
            if surface and NO_CHARACTER not in surface and not BYTE.fullmatch(token):
                found.setdefault(("▁" if begins else "") + surface, number)
        return found

    def joined(self, pieces: Sequence[int]) -> str:
        """The beginning of a word that some pieces make up."""
        first, *others = (str(self.backend.id_to_token(piece)) for piece in pieces)
        return "".join([first, *(other.removeprefix(self._continues) for other in others)])

    def surface(self, word: str) -> str:
        """A word, or a piece of one, as people write it."""
        decoder = self.backend.decoder
        return (decoder.decode([word]) if decoder else word).strip()

    @cached_property
    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.backend.to_str())["model"]
        return {name: value for name, value in described.items() if name not in ("vocab", "merges")}

    @cached_property
    def _continues(self) -> str:
        """What pieces begin with that go on from another."""
        return self._described.get("continuing_subword_prefix") or ""

    @cached_property
    def unknown(self) -> int | None:
        """The id of what the tokenizer does not know; None where its model has none."""
        token = self._described.get("unk_token")
        number: int | None = self._described.get("unk_id") if token is None else self.backend.token_to_id(token)
        return number

    @cached_property
    def bytes(self) -> frozenset[int]:
        """The ids of pieces that are no whole characters: bytes, and parts of characters."""
        vocabulary: Mapping[str, int] = self.backend.get_vocab(with_added_tokens=False)
        return frozenset(
            number
            for piece, number in vocabulary.items()
            if BYTE.fullmatch(piece) or NO_CHARACTER in self.surface(piece)
        )


def count_chunks(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """How often each string between blanks comes, and the size of the texts [bytes of UTF-8]."""
    chunks: Counter[str] = Counter()
    size = 0
    for text in texts:
        chunks.update(text.split())
        size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return chunks, size


def count_words(chunks: Mapping[str, int], reader: WordReader) -> list[CountedWord]:
    """The words of counted chunks, the most frequent first, then by their letters.

    Marks are no words: a word has a letter or a digit.
    """
    counts = by_piece(chunks, reader) if len(chunks) >= WORTH_CHUNKS else None
    if counts is None:
        counts = Counter()
        for chunk, count in chunks.items():
            for word in reader.words(chunk):
                counts[word] += count
    found = sorted(_read(counts, reader), key=attrgetter("word"))
    found.sort(key=attrgetter("count"), reverse=True)  # keeps the order of those that come as often
    return found


def by_piece(chunks: Mapping[str, int], reader: WordReader) -> Counter[str] | None:
    """How often each word comes, marks included, where each different piece of the chunks is looked at once.

    Args:
        chunks: how often each comes.
        reader: the tokenizer's.

    Returns:
        None where the tokenizer does not allow to cut.
    """
    texts = probes(reader.backend)
    rules = allowed_rules(reader.backend, texts)
    if not rules:
        return None
    plain = plain_of(reader.backend, plain_words(texts))
    found = cut([reader.lead + chunk for chunk in chunks], table_of(rules))
    times = np.fromiter(chunks.values(), np.int64, len(chunks)).repeat(np.diff(found.firsts))
    totals = np.bincount(found.pieces.indices.to_numpy(), weights=times).astype(np.int64).tolist()
    counts: Counter[str] = Counter()
    for piece, count in zip(found.pieces.dictionary.to_pylist(), totals, strict=True):
        text = piece.decode()
        word = plain.word_of(text)
        for each in reader.split(text) if word is None else [word]:
            counts[each] += count
    return counts


def _read(counts: Mapping[str, int], reader: WordReader) -> Iterator[CountedWord]:
    unknown = reader.unknown
    for word, count in counts.items():
        surface = reader.surface(word)
        if any(map(str.isalnum, surface)):
            pieces = reader.pieces(word)
            yield CountedWord(word, surface, count, pieces, unknown is not None and unknown in pieces)
