"""Finds out what a tokenizer allows: by which rules texts may be cut, so that the tokens are those of the whole text.

A rule is allowed if the words that the model is handed, after normalizing and splitting, are the same on all probes;
the vocabulary has no part in that. Then the tokens of all probes are held to the library's, which also finds added
tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise

from tokenizers import Tokenizer

from adapt.model.tokenize.cuts import RULES, cut, table_of
from adapt.model.tokenize.direct import DirectWords, Plain, plain_of
from adapt.model.tokenize.library import WordsOf, by_library, handed
from adapt.model.tokenize.pieced import PieceTokenizer
from adapt.model.tokenize.probes import plain_words, probes

MOST_ADDED = 1000
"""Added tokens of a tokenizer that is tried. They are found in a text before it is cut into words, so each is tried."""


@dataclass(frozen=True)
class Cuts:
    """What a tokenizer allows. One process finds it out for others."""

    rules: tuple[str, ...] = ()
    """By which texts may be cut; without any they are left whole."""
    plain: Plain | None = None
    """Which pieces are plain words; None where all pieces go to the library."""

    def tokenizer(self, backend: Tokenizer, words: WordsOf | None = None) -> PieceTokenizer:
        """The tokenizer by pieces. Arguments as of `find_cuts`."""
        return PieceTokenizer(backend, self.rules, words, DirectWords(backend, self.plain) if self.plain else None)


def find_cuts(backend: Tokenizer, words: WordsOf | None = None) -> Cuts:
    """What leaves the tokens of all probes as the library has them.

    Args:
        backend: the tokenizer.
        words: as in `adapt.model.tokenize.library.by_library`.
    """
    if not _can_be_tried(backend):
        return Cuts()
    texts = probes(backend)
    rules = allowed_rules(backend, texts)
    if not rules:
        return Cuts()
    finds_added = any(not token.special for token in backend.get_added_tokens_decoder().values())
    found = Cuts(tuple(rules), None if words or finds_added else plain_of(backend, plain_words(texts)))
    return found if found.tokenizer(backend, words)(texts).same(by_library(backend, texts, words)) else Cuts()


def allowed_rules(backend: Tokenizer, texts: Sequence[str]) -> list[str]:
    """The rules that together leave the words of all texts as they are. There is none without cuts at blanks."""
    words = cache(lambda text: handed(backend, text))
    truth = [words(text) for text in texts]
    chosen: list[str] = []
    for rule in RULES:
        if _by_pieces(texts, [*chosen, rule], words) == truth:
            chosen.append(rule)
        elif not chosen:
            break
    return chosen


def _by_pieces(texts: Sequence[str], rules: Sequence[str], words: Callable[[str], list[str]]) -> list[list[str]]:
    """The words of each text, found piece by piece."""
    found = cut(texts, table_of(rules))
    distinct = [words(piece.decode()) for piece in found.pieces.dictionary.to_pylist()]
    numbers, firsts = found.pieces.indices.to_pylist(), found.firsts.tolist()
    return [
        list(chain.from_iterable(distinct[number] for number in numbers[begin:end])) for begin, end in pairwise(firsts)
    ]


def _can_be_tried(backend: Tokenizer) -> bool:
    """Whether the same text has the same tokens each time, all of them, and there are not too many added ones."""
    if backend.truncation or backend.padding or getattr(backend.model, "dropout", None):
        return False
    return len(backend.get_added_tokens_decoder()) <= MOST_ADDED
