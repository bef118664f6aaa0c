"""The tokenizing task of `prepare`: writes the shards of a chunk of texts, with marks for words and entities.

Tokenizers differ in what they call a word, and in whether they know words at all: WordPiece and byte-level BPE split a
text into words before they look for pieces. Some SentencePiece models do not, and then blanks in the text mark words.
"""

import gc
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from tokenizers import Encoding, Tokenizer

from adapt.corpus.corpora import PLAIN, Form
from adapt.corpus.entities import Span, apart, tagged
from adapt.corpus.heldout import in_share, keys_of
from adapt.corpus.legibility import count_sample
from adapt.corpus.read_progress import text_sizes
from adapt.corpus.token_shards import write_flat_shard
from adapt.model.locate import Pretrained
from adapt.model.tokenize.allowed_cuts import Cuts, find_cuts
from adapt.model.tokenize.library_calls import WordsOf
from adapt.model.tokenize.ragged import BEGINS, ENDS, IDS, SPECIAL, WORDS, Ragged
from adapt.model.tokenize.text_tokenizer import (
    QuickTokenizer,
    TextTokenizer,
    text_tokenizer,
    tokenizer_of,
    written_tokenizer,
)
from adapt.support.schema import ENTITIES, TOKENS, UNIT_STARTS, WORD_STARTS


class EncodedChunk(NamedTuple):
    """What is known of a chunk whose tokens were written."""

    item: int
    counts: Counter[str]
    text_bytes: int
    tally: str
    """Counts of the item, as JSON, where this is its last chunk; else empty."""


@dataclass(frozen=True)
class Encode:
    """Tokenizes a chunk, each document with its special tokens, and writes its shards."""

    pretrained: Pretrained
    folder: Path
    heldout_fraction: float
    form: Form = PLAIN
    shared: Any = None
    """The tokenizer in Ray's object store, from `share_tokenizer`; without it each process loads its own."""

    def __call__(self, table: pa.Table) -> EncodedChunk:
        """Counts of the chunk; the tokens go to the shards."""
        row = table.to_pylist()[0]
        documents, keys, counts = self.tokens(row)
        counts.update(self.sample(row["texts"]))
        heldout, sizes = self.heldout(keys), text_sizes(table)
        for kind, chosen in (("train", ~heldout), ("heldout", heldout)):
            some = documents.where(chosen)
            counts[f"{kind}_documents"] = len(some.bounds) - 1
            counts[f"{kind}_tokens"] = int(some.bounds[-1])
            if chosen.any():
                path = self.folder / f"{kind}-{row['item']:06d}-{row['chunk']:06d}.arrow"
                write_flat_shard(path, some, _tokenizer(self._source).size, keys[chosen], sizes[chosen])
        return EncodedChunk(row["item"], counts, int(sizes.sum()), row["tally"])

    def sample(self, texts: list[str]) -> Counter[str]:
        """Counts of how the tokenizer breaks words in a sample of the texts of a chunk."""
        return count_sample(texts, _tokenizer(self._source))

    @property
    def _source(self) -> "_Source":
        return _Source(self.pretrained, self.shared)

    def heldout(self, keys: np.ndarray) -> np.ndarray:
        """Which documents are held out: bool [documents]."""
        return in_share(keys, self.heldout_fraction)

    def tokens(self, row: dict[str, Any]) -> tuple[Ragged, np.ndarray, Counter[str]]:
        """Token ids and marks of the documents of a chunk, their keys, and counts."""
        texts, tokenizer = row["texts"], _tokenizer(self._source)
        quick = _quick(self._source, bool(self.form.marks))
        encoded = quick(texts)
        ids = encoded.columns[IDS]
        counts = Counter(characters=sum(map(len, texts)), refused=int(bool(quick.refused)))
        if tokenizer.unknown is not None:
            counts["unknown_tokens"] = int(np.count_nonzero(ids == tokenizer.unknown))
        documents = Ragged(encoded.bounds, {TOKENS: ids, **self._marks(encoded, texts, row["entities"])})
        if self.form.ends and tokenizer.end is not None:
            documents = _ended(documents, tokenizer.end)
        return documents, keys_of(texts), counts

    def _marks(self, encoded: Ragged, texts: list[str], given: str) -> dict[str, np.ndarray]:
        """Marks of all tokens."""
        if self.form.marks == (WORD_STARTS,):
            return {WORD_STARTS: encoded.columns[WORDS]}
        if not self.form.marks:
            return {}
        entities = tagged(texts, self.form.tagger) if self.form.tagger else json.loads(given)
        words, *places = (encoded.lists(name) for name in (WORDS, BEGINS, ENDS, SPECIAL))
        numbers = [entity_numbers(*document) for document in zip(*places, entities, strict=True)]
        marks = [unit_marks(*document) for document in zip(words, numbers, strict=True)]
        none = np.zeros(0, bool)
        return {name: np.concatenate([none, *(document[name] for document in marks)]) for name in self.form.marks}


def _ended(documents: Ragged, end: int) -> Ragged:
    """Documents, without marks, that all end with the end-of-text token, whether or not the tokenizer adds it."""
    bounds, ids = documents.bounds, documents.columns[TOKENS]
    full = np.diff(bounds) > 0
    missing = np.ones(len(full), bool)
    missing[full] = ids[bounds[1:][full] - 1] != end
    ended = np.insert(ids, bounds[1:][missing], end)
    return Ragged(bounds + np.concatenate([np.zeros(1, np.int64), np.cumsum(missing)]), {TOKENS: ended})


@dataclass(frozen=True)
class _Source:
    """Where a process has its tokenizer from."""

    pretrained: Pretrained
    shared: Any = field(compare=False)


def share_tokenizer(pretrained: Pretrained, marks: bool, find_out: bool) -> Any:
    """Starts a Ray task that loads a tokenizer for all tasks that tokenize; others begin to read meanwhile.

    Args:
        pretrained: has the tokenizer.
        marks: whether tokens are marked.
        find_out: whether the task finds out what the tokenizer allows; else each that tokenizes does, when it has seen
            enough text.

    Returns:
        for `Encode.shared`.
    """
    return _shared(pretrained, marks, find_out, ray.get_runtime_context().get_job_id())


@lru_cache(maxsize=1)
def _shared(pretrained: Pretrained, marks: bool, find_out: bool, job: str) -> Any:
    """Kept from stage to stage, as long as this process is connected to Ray as the same job."""
    return ray.remote(num_cpus=0)(_load).remote(pretrained, marks, find_out)  # who waits for it may hold all cores


class _Written(NamedTuple):
    """A tokenizer as it goes to other processes."""

    tokenizer: dict[str, Any]
    cuts: Cuts | None
    """What it allows, if that was found out."""


def _load(pretrained: Pretrained, marks: bool, find_out: bool) -> _Written | None:
    tokenizer = text_tokenizer(pretrained)
    gc.freeze()  # what was imported stays; the collector would go through all of it, again and again
    written = written_tokenizer(tokenizer)
    if written is None:
        return None
    return _Written(written, find_cuts(tokenizer.backend, _words(tokenizer.backend, marks)) if find_out else None)


def _words(backend: Tokenizer, marks: bool) -> WordsOf | None:
    return Marker(backend).word_starts if marks else None


@lru_cache(maxsize=1)
def _quick(source: _Source, marks: bool) -> QuickTokenizer:
    """Kept by the process: it remembers the pieces of texts."""
    backend, written = _tokenizer(source).backend, _fetched(source)
    return QuickTokenizer(backend, _words(backend, marks), cuts=written and written.cuts)


def _fetched(source: _Source) -> _Written | None:
    """The tokenizer that another process has written down."""
    if source.shared is None:
        return None
    written: _Written | None = ray.get(source.shared)
    return written


@lru_cache(maxsize=1)
def _tokenizer(source: _Source) -> TextTokenizer:
    """Kept by the process, which tokenizes many chunks. One thread each: the tasks are the parallelism."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    written = _fetched(source)
    return tokenizer_of(written.tokenizer) if written else text_tokenizer(source.pretrained)


# Scripts that put no blanks between words, so that a "word" could be a whole sentence: Thai, Lao, Burmese, Khmer,
# Japanese, Chinese. There every token that begins a character counts as a word, as in BERT's own Chinese.
_NO_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]"
)

_BEYOND = (2**62, 2**62)
"""An entity after the end of any text."""


class Marker:
    """Marks the tokens of texts.

    Args:
        tokenizer: the backend of the model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        probe = tokenizer.encode("a b", add_special_tokens=False)
        self._knows_words = len(set(probe.word_ids)) > 1

    def marks(self, text: str, encoding: Encoding, entities: Sequence[Span]) -> dict[str, np.ndarray]:
        """All columns of a text (see `adapt.support.schema`), bool [tokens] each.

        Args:
            text: the text.
            encoding: its tokens, with their places in the text.
            entities: [start, end) in characters; of overlapping ones the first and longest counts.
        """
        return unit_marks(self.word_starts(text, encoding), _entity_numbers(encoding, entities))

    def word_starts(self, text: str, encoding: Encoding) -> np.ndarray:
        """True at the first token of each word and at each special token, bool [tokens]."""
        words = np.array(encoding.word_ids, float)  # None, which special tokens have, becomes nan: unlike everything
        starts: np.ndarray = np.diff(words, prepend=np.nan) != 0
        begins, ends, before = _places(encoding)
        if not self._knows_words:
            starts |= (before < ends) & _flags([character.isspace() for character in text])[before]
        if _NO_BLANKS.search(text):
            no_blanks = _flags([bool(_NO_BLANKS.match(character)) for character in text])
            starts |= (before <= begins) & (begins < ends) & no_blanks[begins]
        return starts


def unit_marks(words: np.ndarray, entity: np.ndarray) -> dict[str, np.ndarray]:
    """All columns, of where words start and of the entity that each token lies in (see `entity_numbers`)."""
    inside = entity >= 0
    changes = np.diff(entity, prepend=-1) != 0
    return {WORD_STARTS: words, UNIT_STARTS: (words & ~inside) | changes, ENTITIES: inside}


def _entity_numbers(encoding: Encoding, entities: Sequence[Span]) -> np.ndarray:
    begins, ends, _ = _places(encoding)
    return entity_numbers(begins, ends, np.array(encoding.special_tokens_mask, bool), entities)


def entity_numbers(begins: np.ndarray, ends: np.ndarray, special: np.ndarray, entities: Sequence[Span]) -> np.ndarray:
    """For each token, the number of the entity that it lies in, even if only in part; -1 outside. int64 [tokens].

    Args:
        begins: where each token begins in the text.
        ends: where it ends.
        special: whether it is a special token.
        entities: as in `Marker.marks`.
    """
    firsts, lasts = np.array([*apart(entities), _BEYOND]).T
    number = np.searchsorted(lasts, begins, side="right")  # the first that ends after the token begins
    ends = np.maximum(ends, begins + 1)  # a blank that is a token by itself has no place in RoBERTa's
    return np.where((firsts[number] < ends) & ~special, number, -1)


def _places(encoding: Encoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each token begins and ends in the text, and where those before it end. Special tokens are (0, 0)."""
    begins, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
    return begins, ends, np.maximum.accumulate(np.concatenate(([0], ends)))[:-1]


def _flags(values: list[bool]) -> np.ndarray:
    """One more, False, for the end of the text."""
    return np.array([*values, False])
