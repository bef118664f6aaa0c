"""The tokens of pieces with their places and words, as they are in the midst of a text.

RoBERTa's tokenizer leaves the blank before a word out of the places of its token, except at the beginning of what it is
given. So a piece that begins with a blank is given to it with a letter before, and texts that do are not cut.
"""

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from adapt.model.tokenize.library import WordsOf, by_library
from adapt.model.tokenize.ragged import BEGINS, ENDS, Ragged

_ANCHOR = "a"


def starts_blank(text: str) -> bool:
    """Whether a text or piece begins with a blank or the end of a line."""
    return text.startswith((" ", "\n"))


def placed_pieces(backend: Tokenizer, pieces: Sequence[str], words: WordsOf) -> Ragged:
    """All columns of pieces that stand in the midst of a text, without special tokens.

    Args:
        backend: the tokenizer.
        pieces: of texts.
        words: as in `adapt.model.tokenize.library.by_library`.
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
