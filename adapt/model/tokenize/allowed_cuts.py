"""Finds the rules by which a tokenizer allows to cut texts into pieces without a change of tokens.

A rule is allowed if the words that the model receives, after normalizing and splitting, are the same for all
adversarial texts. The vocabulary does not matter for that. Then the tokens of all these texts are compared with the
library's, which also finds added tokens. The adversarial texts are made of Unicode characters and of the tokenizer's
own tokens.
"""

import json
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from adapt.model.tokenize.cuts import RULES, cut, table_of
from adapt.model.tokenize.library_calls import DirectWords, Plain, WordsOf, by_library, handed, plain_of
from adapt.model.tokenize.piece_tokenizer import PieceTokenizer

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
        words: as in `adapt.model.tokenize.library_calls.by_library`.
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


LONGEST_LITERAL = 64
MOST_PIECES = 400
"""Each sample of the vocabulary has at most so many."""
_PLAIN_WORD = re.compile(" ?[A-Za-z]+")
_SURROGATES = re.compile("[\ud800-\udfff]")


def probes(backend: Tokenizer) -> list[str]:
    """Some thousand texts, the same each time.

    Args:
        backend: whose vocabulary, added tokens and patterns are looked at.
    """
    own = [*literals(backend), *(token.content for token in backend.get_added_tokens_decoder().values())]
    atoms = [*WORDS, *SIGNS, *BLANKS, *own]
    return [
        "",
        " ",
        "\n",
        *_alone(atoms),
        *_signs(),
        *_contractions(),
        *_mixed(own),
        *_lines(probe_vocabulary(backend)),
    ]


def probe_vocabulary(backend: Tokenizer) -> list[str]:
    """Pieces of the vocabulary as text: a sample of those that each rule would cut, and of the plain words."""
    pieces = sorted(backend.get_vocab(with_added_tokens=False))
    texts = [re.sub("[Ġ▁]", " ", piece).replace("Ċ", "\n").removeprefix("##") for piece in pieces]
    texts = [text for text in dict.fromkeys(texts) if len(text) <= LONGEST_LITERAL and not _SURROGATES.search(text)]
    found = _some([text for text in texts if _PLAIN_WORD.fullmatch(text)])
    for rule in RULES:
        parts = cut([f"{text}a" for text in texts], table_of([rule]))
        owners = np.repeat(np.arange(len(texts)), np.diff(parts.firsts))
        inside = (parts.places > 0) & (parts.places < np.array([*map(len, texts)], np.int64)[owners])
        found += _some([texts[number] for number in np.unique(owners[inside])])
    return list(dict.fromkeys(found))


def literals(backend: Tokenizer) -> list[str]:
    """What stands written in the normalizer and the pre-tokenizer, such as texts that they replace."""
    parts = [part for part in (backend.normalizer, backend.pre_tokenizer) if part is not None]
    found = [text for part in parts for text in _strings(json.loads(part.__getstate__()))]
    return [text for text in dict.fromkeys(found) if 0 < len(text) <= LONGEST_LITERAL]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _alone(atoms: Iterable[str]) -> list[str]:
    """Each beside blanks and plain characters."""
    return [
        f"{atom} a{atom} {atom}b a{atom}b a {atom} b,{atom} 1{atom}1 {atom}\n{atom} x\n{atom}\ny ({atom}) é{atom}"
        for atom in atoms
    ]


def _signs() -> list[str]:
    """All pairs of ASCII signs beside letters, digits and blanks."""
    return [
        "".join(
            f"ab{first}{other}cd 1{first}{other}2 é{first}{other} {first}a{other}\n" for other in string.punctuation
        )
        for first in string.punctuation
    ]


def _contractions() -> list[str]:
    """Such as patterns look for, with a letter after."""
    ends = ("s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "VE", "M", "LL", "D", "n", "N", "em")
    return [
        " ".join(f"it{quote}{end}{letter}a {quote}{end}{letter}" for letter in string.ascii_letters for end in ends)
        for quote in ("'", "\u2019")
    ]


def _mixed(own: Sequence[str]) -> list[str]:
    """Random texts."""
    draw = random.Random(0)
    kinds = [WORDS, SIGNS, BLANKS, [" "], [" "], [" "], [""], string.ascii_letters, string.digits, string.punctuation]
    kinds += [own] if own else []
    return ["".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 60))) for _ in range(400)]


def _lines(pieces: Sequence[str]) -> list[str]:
    """Pieces of the vocabulary beside blanks and each other, some in a text."""
    return [
        " ".join(f"{piece} x{piece}y{other}" for piece, other in zip(part, [*part[1:], part[0]], strict=True))
        for part in (pieces[start : start + 50] for start in range(0, len(pieces), 50))
    ]


def _some(texts: list[str]) -> list[str]:
    return texts[:: len(texts) // MOST_PIECES + 1]


def plain_words(texts: Iterable[str]) -> list[str]:
    """ASCII words of texts, with a blank before and without."""
    words = {word for text in texts for word in re.findall("[!-~]+", text)}
    return [mark + word for word in sorted(words) for mark in ("", " ")]


# ruff: noqa: RUF001 - letters that look like others are meant

_WORDS = """
    a the Hello ÜBER naïve İI ß Σς ΑΣ Жизнь ǅ K ﬁn ªº 日本語 한국어 ไทยคำ हिन्दी العربية שָׁלוֹם ﷺ ｱﾞ ﾞ ർൎ 𝔘 ˈ ʰ 々 ー ㍿
"""
_SIGNS = """
    don't I'll 's 'S '' ' " (see 3.14) 1,000 U.S. e.g., -- ... a_b `` <b> http://x.yz/?q=1&r=[2] x@y.z C++ #1 1st
    ½ ² Ⅷ ٣ ७ … “quoted” ‘it’s’ — –5 €5 ´ ¨ ¸ ～ 。 、 「x」 ☃ © 🙂 🇩🇪🇫🇷 👍🏽 ##ing ▁ ▁a Ġ Ċ [UNK] </s>
"""
WORDS = [
    *_WORDS.split(),
    *("x" * 101, "ab" * 60, "e\u0301a", "\u0301", "x\u0308y", "A\u030a", "\u20dd", "\u0345", "\u0e33"),
    *("\u1112\u1161\u11ab", "\U0001e900"),
]
SIGNS = [
    *_SIGNS.split(),
    *("0" * 40, "👩\u200d👩\u200d👧", "\ufffd", "\ue000", "\u0378", "\U0010fffe"),
]
BLANKS = [
    *(" ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r", "\r\n", "\t", "\t ", "\x0b", "\x0c", "\x1c", "\x1f", "\x85"),
    *("\u00a0", "\u1680", "\u2003", "\u2009", "\u202f", "\u3000", "\u2028", "\u2029", "\u200b", "\u200c", "\u200d"),
    *("\u2060", "\ufeff", "\u00ad", "\x00", "\x07", "\x7f", "\u061c", "\u0600"),
]
