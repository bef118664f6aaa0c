"""Where words and entities lie in a tokenized text, for every kind of tokenizer.

Tokenizers differ in what they call a word, and in whether they know words at all: WordPiece and byte-level BPE split a
text into words before they look for pieces; some SentencePiece models do not, and then blanks in the text tell.
"""

import re
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding, Tokenizer

from adapt.corpus.entities import Span, apart
from adapt.schema import ENTITIES, UNIT_STARTS, WORD_STARTS

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
        """All columns of a text (see `adapt.schema`), bool [tokens] each.

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
