"""Tokenizes chunks of texts in tasks of stage `prepare`, and writes shards with marks for words and entities.

Tokenizers differ in their definition of a word, and some have none. WordPiece and byte-level BPE split a text into
words before they split words into pieces. Some SentencePiece models do not. For such models, words are the parts of the
text between spaces.
"""

import gc
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from tokenizers import Encoding, Tokenizer

from adapt.corpus import corpora, read_progress, text_profile, token_shards
from adapt.corpus.entities import Span, tagged, without_overlaps
from adapt.corpus.heldout import in_share, keys_of
from adapt.model.locate import Pretrained
from adapt.model.tokenize.piece_tokenizer import BEGINS, ENDS, IDS, SPECIAL, WORDS, Ragged, WordsOf
from adapt.model.tokenize.text_tokenizer import (
    Cuts,
    QuickTokenizer,
    TextTokenizer,
    find_cuts,
    text_tokenizer,
    tokenizer_of,
    written_tokenizer,
)
from adapt.support.schema import ENTITIES, TOKENS, UNIT_STARTS, WORD_STARTS


@dataclass(frozen=True)
class Encode:
    """Tokenizes the documents of a chunk, with special tokens, and writes the chunk's shards."""

    pretrained: Pretrained
    folder: Path
    heldout_fraction: float
    form: corpora.Form = corpora.PLAIN
    shared: Any = None
    """Reference to the tokenizer in Ray's object store, from `share_tokenizer`. If None, each process loads its own."""

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Writes the tokens of the chunk into shards.

        Returns:
            A row, as columns: `item`, the number of the chunk's item; `counts`, JSON with the numbers of documents,
            tokens and words; `text_bytes`, the size of the texts in UTF-8 [bytes]; and `tally`, JSON with the `Tally`
            of the item if the chunk is the item's last one, otherwise empty.
        """
        row = table.to_pylist()[0]
        documents, keys, counts = self.tokens(row)
        counts.update(self.sample(row["texts"]))
        heldout, sizes = self.heldout(keys), read_progress.text_sizes(table)
        if self.form.sentences:
            sizes = np.array([len(text.encode()) for text in with_owners(row["texts"])[0]], np.int64)
        for kind, chosen in (("train", ~heldout), ("heldout", heldout)):
            some = documents.where(chosen)
            counts[f"{kind}_documents"] = len(some.bounds) - 1
            counts[f"{kind}_tokens"] = int(some.bounds[-1])
            if chosen.any():
                path = self.folder / f"{kind}-{row['item']:06d}-{row['chunk']:06d}.arrow"
                token_shards.write_flat_shard(path, some, self._tokenizer.size, keys[chosen], sizes[chosen])
        encoded = {"item": row["item"], "counts": json.dumps(counts), "text_bytes": int(sizes.sum())}
        return {name: [value] for name, value in {**encoded, "tally": row["tally"]}.items()}

    def sample(self, texts: list[str]) -> Counter[str]:
        """Counts how the tokenizer splits words, in a sample of the texts of a chunk (see `count_sample`)."""
        return text_profile.count_sample(texts, self._tokenizer)

    @property
    def _tokenizer(self) -> TextTokenizer:
        return _loaded(self.pretrained, self.shared)[0]

    def heldout(self, keys: np.ndarray) -> np.ndarray:
        """Returns, for each document, whether it is held out: bool [documents]."""
        return in_share(keys, self.heldout_fraction)

    def tokens(self, row: dict[str, Any]) -> tuple[Ragged, np.ndarray, Counter[str]]:
        """Tokenizes the documents of a chunk.

        Returns:
            The token ids and marks of the documents, the documents' keys, and counts: characters, unknown tokens, and
            `refused`, which is 1 if the tokenizer does not allow texts to be cut into separately tokenized pieces. If
            documents are split into sentences, each sentence is a document with the key of the whole document.
        """
        texts, tokenizer = row["texts"], self._tokenizer
        keys = keys_of(texts)
        if self.form.sentences:
            texts, owners = with_owners(texts)
            keys = keys[owners]
        quick = piece_tokenizer(self.pretrained, self.shared, bool(self.form.marks))
        encoded = quick(texts)
        ids = encoded.columns[IDS]
        counts = Counter(characters=sum(map(len, texts)), refused=int(bool(quick.refused)))
        if tokenizer.unknown is not None:
            counts["unknown_tokens"] = int(np.count_nonzero(ids == tokenizer.unknown))
        documents = Ragged(encoded.bounds, {TOKENS: ids, **self._marks(encoded, texts, row["entities"])})
        if self.form.ends and tokenizer.end is not None:
            documents = end_documents(documents, tokenizer.end)
        return documents, keys, counts

    def _marks(self, encoded: Ragged, texts: list[str], known_entities: str) -> dict[str, np.ndarray]:
        """Returns the mark columns of all tokens: starts of words, starts of units, and entities.

        Entities are found by the tagger if there is one. Otherwise they are read from `known_entities`, which is JSON.
        """
        if self.form.marks == (WORD_STARTS,):
            return {WORD_STARTS: encoded.columns[WORDS]}
        if not self.form.marks:
            return {}
        entities = tagged(texts, self.form.tagger) if self.form.tagger else json.loads(known_entities)
        words, *places = (encoded.lists(name) for name in (WORDS, BEGINS, ENDS, SPECIAL))
        numbers = [entity_numbers(*document) for document in zip(*places, entities, strict=True)]
        marks = [unit_marks(*document) for document in zip(words, numbers, strict=True)]
        none = np.zeros(0, bool)
        return {name: np.concatenate([none, *(document[name] for document in marks)]) for name in self.form.marks}


_CLOSING, _OPENING = "[\"'\u201d\u2019)\\]]", "[\\d\"'\u201c\u2018(\\[]"
_SENTENCE_ENDS = re.compile(
    rf"(?<=[.!?]){_CLOSING}*\s+(?=[^\s\W\d_a-z]|{_OPENING})|\s*\n\s*\n\s*|(?<=[\u3002\uff01\uff1f])"
)
"""Pattern of a position where a sentence may end: an empty line; a Chinese or Japanese full stop; or white space that
follows `.`, `!` or `?` (and closing quotes) and precedes a digit, an opening quote or bracket, or a letter that is not
lower-case."""
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|al|ca|approx|resp|Figs?|Eqs?|Refs?|Secs?|Tabs?|Nos?|Vols?|pp|Drs?|Mrs?|Ms|Prof|St)"
    r"|\b[^\W\d_])\.$"
)
"""Pattern of a text's end after which the sentence continues: an abbreviation, or a single letter with a dot."""


def sentences_of(text: str) -> list[str]:
    """Splits a text into sentences. A part with no letter or digit is joined to the previous sentence."""
    found: list[str] = []
    begin, is_whole = 0, True
    for match in [*_SENTENCE_ENDS.finditer(text), None]:
        piece = text[begin : len(text) if match is None else match.end()]
        before = text[begin : len(text) if match is None else match.start()].strip()
        if match is not None and "\n" not in match.group().strip(" ") and _ABBREVIATION.search(before):
            continue
        begin += len(piece)
        if is_whole or any(map(str.isalnum, piece)):
            found.append(piece.strip())
        elif piece.strip():
            found[-1] = f"{found[-1]} {piece.strip()}"
        is_whole = False
    return [sentence for sentence in found if sentence] or [text]


def with_owners(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Returns the sentences of all texts, and the index of the text of each sentence, int64 [sentences]."""
    sentences = [sentences_of(text) for text in texts]
    owners = np.repeat(np.arange(len(texts)), [len(each) for each in sentences])
    return [sentence for each in sentences for sentence in each], owners


def end_documents(documents: Ragged, end: int) -> Ragged:
    """Adds the end-of-text token to each document that does not end with it already.

    The documents must have no marks.
    """
    bounds, ids = documents.bounds, documents.columns[TOKENS]
    full = np.diff(bounds) > 0
    missing = np.ones(len(full), bool)
    missing[full] = ids[bounds[1:][full] - 1] != end
    ended = np.insert(ids, bounds[1:][missing], end)
    return Ragged(bounds + np.concatenate([np.zeros(1, np.int64), np.cumsum(missing)]), {TOKENS: ended})


def share_tokenizer(pretrained: Pretrained, marks: bool, find_out: bool) -> Any:
    """Starts a Ray task that loads a tokenizer for all tokenizing tasks. Reading tasks can start meanwhile.

    Args:
        pretrained: model whose tokenizer is loaded.
        marks: whether the corpus stores marks for each token, such as starts of words.
        find_out: whether the started task determines where texts can be cut into separately tokenized pieces. If False,
            each tokenizing task does this itself when it has seen enough text.

    Returns:
        The reference for `Encode.shared`.
    """
    return _shared(pretrained, marks, find_out, ray.get_runtime_context().get_job_id())


@lru_cache(maxsize=1)
def _shared(pretrained: Pretrained, marks: bool, find_out: bool, job: str) -> Any:
    """Returns the reference to the loaded tokenizer. The reference is cached for all stages of the same Ray job."""
    # the task reserves no core, because the tasks that wait for the tokenizer may hold all cores
    return ray.remote(num_cpus=0)(_load).remote(pretrained, marks, find_out)


class _Written(NamedTuple):
    """A tokenizer in a form that can be sent to other processes."""

    tokenizer: dict[str, Any]
    cuts: Cuts | None
    """Positions at which texts can be cut into separately tokenized pieces; None if they were not determined."""


def _load(pretrained: Pretrained, marks: bool, find_out: bool) -> _Written | None:
    tokenizer = text_tokenizer(pretrained)
    gc.freeze()  # exempts imported modules from garbage collection, which would scan them again and again
    written = written_tokenizer(tokenizer)
    if written is None:
        return None
    return _Written(written, find_cuts(tokenizer.backend, _words(tokenizer.backend, marks)) if find_out else None)


def _words(backend: Tokenizer, marks: bool) -> WordsOf | None:
    return Marker(backend).word_starts if marks else None


@lru_cache(maxsize=1)
def piece_tokenizer(pretrained: Pretrained, shared: Any, marks: bool) -> QuickTokenizer:
    """Returns the process's fast tokenizer, which caches the tokens of pieces of texts."""
    tokenizer, cuts = _loaded(pretrained, shared)
    return QuickTokenizer(tokenizer.backend, _words(tokenizer.backend, marks), cuts=cuts)


@lru_cache(maxsize=1)
def _loaded(pretrained: Pretrained, shared: Any) -> tuple[TextTokenizer, Cuts | None]:
    """Returns the process's tokenizer, which is cached, and its cuts (see `_Written`).

    The tokenizer comes from Ray's object store if it is there. It uses one thread, because tasks run in parallel.
    """
    os.environ["RAYON_NUM_THREADS"] = "1"
    written: _Written | None = None if shared is None else ray.get(shared)
    if written is None:
        return text_tokenizer(pretrained), None
    return tokenizer_of(written.tokenizer), written.cuts


# Scripts without spaces between words, in which a "word" could be a whole sentence: Thai, Lao, Burmese, Khmer,
# Japanese, Chinese. In these scripts, every token that begins a character counts as the start of a word, as in BERT's
# Chinese model.
_NO_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]"
)

_BEYOND = (2**62, 2**62)
"""Placeholder for an entity after the end of any text, so that every token is followed by an entity."""


class Marker:
    """Marks the starts of words and the entities among the tokens of texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        probe = tokenizer.encode("a b", add_special_tokens=False)
        self._knows_words = len(set(probe.word_ids)) > 1

    def marks(self, text: str, encoding: Encoding, entities: Sequence[Span]) -> dict[str, np.ndarray]:
        """Returns all mark columns of a text (see `adapt.support.schema`), bool [tokens] each.

        Args:
            text: the text.
            encoding: tokens of the text, with their positions in it.
            entities: positions [start, end) in characters. If entities overlap, only the one that starts first is used;
                if several start there, the longest.
        """
        begins, ends, _ = _places(encoding)
        special = np.array(encoding.special_tokens_mask, bool)
        return unit_marks(self.word_starts(text, encoding), entity_numbers(begins, ends, special, entities))

    def word_starts(self, text: str, encoding: Encoding) -> np.ndarray:
        """Returns, for each token, whether it starts a word or is a special token: bool [tokens]."""
        words = np.array(encoding.word_ids, float)  # the word of a special token is None, which becomes NaN
        starts: np.ndarray = np.diff(words, prepend=np.nan) != 0
        begins, ends, before = _places(encoding)
        if not self._knows_words:
            starts |= (before < ends) & _flags([character.isspace() for character in text])[before]
        if _NO_BLANKS.search(text):
            no_blanks = _flags([bool(_NO_BLANKS.match(character)) for character in text])
            starts |= (before <= begins) & (begins < ends) & no_blanks[begins]
        return starts


def unit_marks(words: np.ndarray, entity: np.ndarray) -> dict[str, np.ndarray]:
    """Returns all mark columns (starts of words, starts of units, and entities), bool [tokens] each.

    Args:
        words: whether each token starts a word, bool [tokens].
        entity: number of the entity of each token, -1 outside entities, int64 [tokens] (see `entity_numbers`).
    """
    inside = entity >= 0
    changes = np.diff(entity, prepend=-1) != 0
    return {WORD_STARTS: words, UNIT_STARTS: (words & ~inside) | changes, ENTITIES: inside}


def entity_numbers(begins: np.ndarray, ends: np.ndarray, special: np.ndarray, entities: Sequence[Span]) -> np.ndarray:
    """Returns the number of the entity that each token overlaps, int64 [tokens]; -1 for tokens outside entities.

    Args:
        begins: position at which each token begins in the text [characters].
        ends: position at which each token ends [characters].
        special: whether each token is a special token.
        entities: positions [start, end) in characters. If entities overlap, only the one that starts first is used; if
            several start there, the longest.
    """
    firsts, lasts = np.array([*without_overlaps(entities), _BEYOND]).T
    number = np.searchsorted(lasts, begins, side="right")  # number of the first entity that ends after the token begins
    ends = np.maximum(ends, begins + 1)  # RoBERTa's tokenizer gives a token of one space an empty range
    return np.where((firsts[number] < ends) & ~special, number, -1)


def _places(encoding: Encoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the start and end of each token in the text, and the largest end of all earlier tokens [characters].

    Special tokens have the position (0, 0).
    """
    begins, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
    return begins, ends, np.maximum.accumulate(np.concatenate(([0], ends)))[:-1]


def _flags(values: list[bool]) -> np.ndarray:
    """Returns the values as an array, followed by False for the end of the text."""
    return np.array([*values, False])
