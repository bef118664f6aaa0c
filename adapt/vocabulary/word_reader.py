"""Reads a sample of a corpus's training text, and splits it into words and pieces as a tokenizer does.

The sample is read in one process. Each item of the corpus (a range of a file) contributes an equal part. The
tokenizer's pre-tokenizer determines the words.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest, items_of
from adapt.corpus.heldout import Measured, in_share, keys_of
from adapt.corpus.sample_order import permute
from adapt.corpus.screening import PASS, Screen, Tally, check_few_bad, item_texts, local_screen
from adapt.model.tokenize import cuts, piece_tokenizer, text_tokenizer

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""Pattern of pieces that stand for a single byte, such as `<0x0A>`, in tokenizers that fall back to bytes."""
WORTH_CHUNKS = 300_000
"""Minimum number of distinct chunks (strings between spaces) for which `by_piece` is used. For fewer chunks, `by_piece`
is slower than splitting each chunk, because it first tests where chunks may be cut."""
NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Character that a decoder returns for an incomplete character, such as the first byte of a multi-byte character."""


@dataclass(frozen=True, slots=True)
class CountedWord:
    """A word of a corpus, with its pieces and the number of its occurrences."""

    word: str
    """The word in the tokenizer's spelling, such as `Ġhepatitis` or `▁hepatitis`."""
    surface: str
    """The word as readable text."""
    count: int
    """Number of occurrences of the word in the corpus."""
    pieces: tuple[int, ...]
    """Ids of the word's pieces, in order."""
    unknown: bool
    """Whether a part of the word is unknown to the tokenizer."""

    @property
    def saved(self) -> int:
        """Number of pieces that the corpus would save if the word were one token.

        For an unknown word, the number of characters is used instead of the number of pieces.
        """
        return self.count * ((len(self.surface) if self.unknown else len(self.pieces)) - 1)


class WordReader:
    """Finds words and their pieces with a tokenizer's normalizer, pre-tokenizer, model and decoder.

    A word is a unit that the pre-tokenizer does not split, as it occurs after a space. Without a pre-tokenizer, words
    are separated by spaces. No piece extends over two words, so a new token for a word affects this word only.

    Args:
        backend: a tokenizer that treats special tokens in a text as ordinary text (`adapt.model.tokenizer`).
    """

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self._normalizer, self._pre, self._model = backend.normalizer, backend.pre_tokenizer, backend.model
        self.lead = ""
        """Text put before each chunk: a space if the tokenizer distinguishes words after a space; otherwise empty."""
        self.lead = max(("", " "), key=lambda lead: self._fits(lead) * len("".join(self.words(lead + "b"))))

    def _fits(self, lead: str) -> bool:
        """Returns whether the tokenizer splits a word after this prefix in the same way as after a space in a text."""
        return "".join(self.split("a b")).endswith("".join(self.split(lead + "b")))

    def words(self, chunk: str) -> list[str]:
        """Splits a chunk, the text between two spaces, into words."""
        return self.split(self.lead + chunk)

    def split(self, text: str) -> list[str]:
        """Splits a text into words exactly as given, without the leading space that some tokenizers add."""
        if self._normalizer:
            text = self._normalizer.normalize_str(text)
        if self._pre is None:
            return [text] if text else []
        return [word for word, _ in self._pre.pre_tokenize_str(text)]

    def pieces(self, word: str) -> tuple[int, ...]:
        """Returns the ids of a word's pieces."""
        return tuple(token.id for token in self._model.tokenize(word))

    @property
    def size(self) -> int:
        """Number of tokens of the tokenizer."""
        return self.backend.get_vocab_size()

    def knows(self, piece: str) -> bool:
        """Returns whether a piece is a token of the tokenizer."""
        return self.backend.token_to_id(piece) is not None

    def parts(self, piece: str) -> tuple[int, ...]:
        """Returns the ids of the pieces of a word's part. The part may begin within the word (`##itis`)."""
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
        """Returns the ids of all tokens, keyed by readable text. Keys of tokens that begin a word start with ▁.

        Equal tokens have the same key in all types of tokenizers. Bytes and parts of characters are left out.
        """
        found: dict[str, int] = {}
        for token, number in self.backend.get_vocab(with_added_tokens=False).items():
            begins = not token.startswith(self._continues) if self._continues else token[:1] in ("Ġ", "▁")
            surface = self.surface(token.removeprefix(self._continues))
            if surface and NO_CHARACTER not in surface and not BYTE.fullmatch(token):
                found.setdefault(("▁" if begins else "") + surface, number)
        return found

    def joined(self, pieces: Sequence[int]) -> str:
        """Joins pieces with which a word begins, and returns the result in the tokenizer's spelling."""
        first, *others = (str(self.backend.id_to_token(piece)) for piece in pieces)
        return "".join([first, *(other.removeprefix(self._continues) for other in others)])

    def surface(self, word: str) -> str:
        """Returns a word, or a piece of a word, as readable text."""
        decoder = self.backend.decoder
        return (decoder.decode([word]) if decoder else word).strip()

    @cached_property
    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.backend.to_str())["model"]
        return {name: value for name, value in described.items() if name not in ("vocab", "merges")}

    @cached_property
    def _continues(self) -> str:
        """Prefix of pieces that continue a word, such as `##`; empty if there is none."""
        return self._described.get("continuing_subword_prefix") or ""

    @cached_property
    def unknown(self) -> int | None:
        """The id of the token for unknown text; None if the tokenizer has none."""
        token = self._described.get("unk_token")
        number: int | None = self._described.get("unk_id") if token is None else self.backend.token_to_id(token)
        return number

    @cached_property
    def bytes(self) -> frozenset[int]:
        """The ids of pieces that are bytes or other parts of a character."""
        vocabulary: Mapping[str, int] = self.backend.get_vocab(with_added_tokens=False)
        return frozenset(
            number
            for piece, number in vocabulary.items()
            if BYTE.fullmatch(piece) or NO_CHARACTER in self.surface(piece)
        )


def count_chunks(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """Counts the chunks of texts (the strings between spaces), and the size of the texts [bytes of UTF-8]."""
    chunks: Counter[str] = Counter()
    size = 0
    for text in texts:
        chunks.update(text.split())
        size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return chunks, size


def count_words(chunks: Mapping[str, int], reader: WordReader) -> list[CountedWord]:
    """Returns the words of counted chunks, ordered by frequency. Words of equal frequency are in alphabetical order.

    A word has a letter or a digit, so punctuation marks are not words.
    """
    counts = by_piece(chunks, reader) if len(chunks) >= WORTH_CHUNKS else None
    if counts is None:
        counts = Counter()
        for chunk, count in chunks.items():
            for word in reader.words(chunk):
                counts[word] += count
    found = sorted(_read(counts, reader), key=attrgetter("word"))
    found.sort(key=attrgetter("count"), reverse=True)  # the sort is stable, so equal counts stay in alphabetical order
    return found


def by_piece(chunks: Mapping[str, int], reader: WordReader) -> Counter[str] | None:
    """Counts the words of counted chunks, including punctuation marks, and splits each distinct part only once.

    Returns:
        The number of occurrences of each word; None if chunks cannot be cut into parts with this tokenizer.
    """
    texts = text_tokenizer.probes(reader.backend)
    rules = text_tokenizer.allowed_rules(reader.backend, texts)
    if not rules:
        return None
    plain = piece_tokenizer.plain_of(reader.backend, text_tokenizer.plain_words(texts))
    found = cuts.cut([reader.lead + chunk for chunk in chunks], cuts.table_of(rules))
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


TOGETHER = 256
"""Number of documents whose keys are computed at once."""
MEGABYTE = 1_000_000


def corpus_texts(
    manifest: Manifest,
    corpus: CorpusConfig,
    megabytes: float,
    seed: int = 0,
    measured: Measured | None = None,
    duplicates: Path | None = None,
) -> Iterator[str]:
    """Yields documents of a corpus that stage `prepare` would also use for training.

    Held-out documents, and documents that contain a text of `corpus.decontaminate`, are always left out.

    Args:
        manifest: the files of the corpus.
        corpus: the configuration of one source.
        megabytes: about this much text is read, in equal parts from every item of the corpus.
        seed: seed that determines the order of the items.
        measured: keys of documents that are used for evaluation. These documents are left out.
        duplicates: result of stage `dedup` for this source. Duplicates are left out.

    Raises:
        DataError: a file or an evaluation set is broken, or too many of the records that were read are unusable.
    """
    items, screen = items_of(manifest, corpus), local_screen(corpus, measured, duplicates)
    left, total = megabytes * MEGABYTE, Tally()
    for index, number in enumerate(permute(np.arange(len(items)), max(len(items), 1), seed, 0).tolist()):
        share = left / (len(items) - index)  # small items leave a larger share to later items
        tally = Tally()
        for text, is_held_out in _item_texts(number, items[number], corpus, tally, screen):
            if share <= 0:
                break
            if is_held_out:
                continue
            size = len(text.encode("utf-8", "replace"))
            share, left = share - size, left - size
            yield text
        total.add(tally)
    check_few_bad(total, corpus.max_bad_fraction)


def measured_in(manifest: Manifest, corpus: CorpusConfig) -> Measured:
    """Reads a whole corpus that is used for evaluation, and returns the keys of its held-out documents.

    Args:
        manifest: the files of the corpus.
        corpus: the configuration of one source; `heldout_fraction` is the share that is measured.

    Raises:
        DataError: a file is broken, or too many records are unusable.
    """
    total, keys = Tally(), [np.zeros(0, np.uint64)]
    for number, item in enumerate(items_of(manifest, corpus)):
        tally = Tally()
        texts = [text for text, is_held_out in _item_texts(number, item, corpus, tally, PASS) if is_held_out]
        keys.append(keys_of(texts))
        total.add(tally)
    check_few_bad(total, corpus.max_bad_fraction)
    return Measured(np.unique(np.concatenate(keys)))


def _item_texts(
    number: int, item: str, corpus: CorpusConfig, tally: Tally, screen: Screen
) -> Iterator[tuple[str, bool]]:
    """Yields each document of an item that passes the checks of `screen`, and whether it is held out."""
    with screen.of(number) as sieve:
        texts = (text for _, text in item_texts(number, item, corpus, tally, sieve))
        while some := list(islice(texts, TOGETHER)):
            yield from zip(some, in_share(keys_of(some), corpus.heldout_fraction).tolist(), strict=True)
