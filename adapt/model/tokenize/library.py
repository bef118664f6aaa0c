"""The `tokenizers` library's own call, and what it says of tokens, as flat arrays."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from tokenizers import Encoding, Tokenizer

from adapt.model.tokenize.ragged import BEGINS, ENDS, IDS, SPECIAL, WORDS, Ragged

WordsOf = Callable[[str, Encoding], np.ndarray]
"""Says at which tokens of a text words start: bool [tokens]."""


def by_library(backend: Tokenizer, texts: Sequence[str], words: WordsOf | None, special: bool = True) -> Ragged:
    """Tokenizes texts.

    Args:
        backend: the tokenizer.
        texts: whole ones, or pieces of them.
        words: if given, all columns are; else ids alone.
        special: add special tokens.
    """
    if words is None:
        return of_ids([each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=special)])
    encodings = backend.encode_batch(texts, add_special_tokens=special)
    return _described(texts, encodings, words)


def handed(backend: Tokenizer, text: str) -> list[str]:
    """What the model is handed of a text to look for pieces in: words, normalized, where the tokenizer splits any."""
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]


def of_ids(lists: Sequence[Sequence[int]]) -> Ragged:
    """Token ids as they come from the library."""
    return Ragged.of([len(ids) for ids in lists], {IDS: _flat(lists, np.uint32)})


def _described(texts: Sequence[str], encodings: Sequence[Encoding], words: WordsOf) -> Ragged:
    places = _flat((place for each in encodings for place in each.offsets), np.int64).reshape(-1, 2)
    starts = [words(*each) for each in zip(texts, encodings, strict=True)]
    columns = {
        IDS: _flat((each.ids for each in encodings), np.uint32),
        WORDS: np.concatenate([np.zeros(0, bool), *starts]),
        BEGINS: places[:, 0],
        ENDS: places[:, 1],
        SPECIAL: _flat((each.special_tokens_mask for each in encodings), np.bool_),
    }
    return Ragged.of([len(each) for each in encodings], columns)


def _flat(lists: Iterable[Sequence[int]], kind: type) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), kind)
