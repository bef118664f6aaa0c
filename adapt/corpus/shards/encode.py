"""The tokenizing task of `prepare`: a chunk of texts in, its shards out."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adapt.corpus.entities import Span, tagged
from adapt.corpus.screening.heldout import in_share, key_of
from adapt.corpus.shards.form import PLAIN, Form
from adapt.corpus.shards.marks import Marker, entity_numbers, unit_marks
from adapt.corpus.shards.tokens import write_shard
from adapt.corpus.watch import text_bytes
from adapt.model.locate import Pretrained
from adapt.model.tokenize.quick import QuickTokenizer
from adapt.model.tokenize.ragged import BEGINS, ENDS, IDS, SPECIAL, WORDS, Ragged
from adapt.schema import KEYS, TOKENS


@dataclass(frozen=True)
class Encode:
    """Tokenizes a chunk, each document with its special tokens, and writes its shards."""

    pretrained: Pretrained
    folder: Path
    heldout_fraction: float
    form: Form = PLAIN

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Counts of the chunk; the tokens go to the shards."""
        row = table.to_pylist()[0]
        columns, keys, counts = self.tokens(row)
        columns, heldout = {**columns, KEYS: keys}, self.heldout(keys)
        for kind, wanted in (("train", False), ("heldout", True)):
            chosen = {
                name: [value for value, out in zip(values, heldout, strict=True) if out is wanted]
                for name, values in columns.items()
            }
            documents, known = chosen.pop(TOKENS), chosen.pop(KEYS)
            counts[f"{kind}_documents"] = len(documents)
            counts[f"{kind}_tokens"] = sum(map(len, documents))
            if documents:
                name = f"{kind}-{row['item']:06d}-{row['chunk']:06d}.arrow"
                write_shard(self.folder / name, documents, len(_tokenizer(self.pretrained)), chosen, known)
        result = {"item": row["item"], "tally": row["tally"], "counts": json.dumps(counts)}
        return {**{name: [value] for name, value in result.items()}, "text_bytes": [text_bytes(table)]}

    def heldout(self, keys: list[int]) -> list[bool]:
        """Which documents are held out."""
        return [in_share(key, self.heldout_fraction) for key in keys]

    def tokens(self, row: dict[str, Any]) -> tuple[dict[str, list[Any]], list[int], Counter[str]]:
        """Token ids and marks of each document of a chunk, their keys, and counts."""
        texts, tokenizer = row["texts"], _tokenizer(self.pretrained)
        quick = _quick(self.pretrained, bool(self.form.marks))
        found = quick(texts)
        counts = Counter(characters=sum(map(len, texts)), refused=int(bool(quick.refused)))
        if tokenizer.unk_token not in (None, tokenizer.eos_token):  # GPT-2 names one as both, and knows every byte
            counts["unknown_tokens"] = int(np.count_nonzero(found.columns[IDS] == tokenizer.unk_token_id))
        columns = {TOKENS: found.lists(IDS), **self._marks(found, texts, json.loads(row["entities"]))}
        if self.form.ends:
            columns[TOKENS] = [_ended(ids, tokenizer.eos_token_id) for ids in columns[TOKENS]]
        return columns, [key_of(text) for text in texts], counts

    def _marks(self, found: Ragged, texts: list[str], entities: list[list[Span]]) -> dict[str, list[Any]]:
        """Marks of each text's tokens."""
        if not self.form.marks:
            return {}
        if self.form.tagger:
            entities = tagged(texts, self.form.tagger)
        words, *places = (found.lists(name) for name in (WORDS, BEGINS, ENDS, SPECIAL))
        numbers = [entity_numbers(*each) for each in zip(*places, entities, strict=True)]
        marks = [unit_marks(*each) for each in zip(words, numbers, strict=True)]
        return {name: [marked[name] for marked in marks] for name in self.form.marks}


def _ended(ids: np.ndarray, end: int) -> np.ndarray:
    """A document that ends with the end-of-text token, if the tokenizer has not ended it."""
    return ids if ids[-1:].tolist() == [end] else np.append(ids, np.uint32(end))


@lru_cache(maxsize=1)
def _quick(pretrained: Pretrained, marks: bool) -> QuickTokenizer:
    """Kept by the process: it remembers the pieces of texts."""
    backend = _tokenizer(pretrained).backend_tokenizer
    return QuickTokenizer(backend, Marker(backend).word_starts if marks else None)


@lru_cache(maxsize=1)
def _tokenizer(pretrained: Pretrained) -> Any:
    """Kept by the process, which tokenizes many chunks. One thread each: the tasks are the parallelism."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    from adapt.model.literal import load_text_tokenizer

    return load_text_tokenizer(pretrained)
