"""Adversarial texts: what shows that a tokenizer does not allow a cut, gathered from Unicode and from the tokenizer."""

import json
import random
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from adapt.model.tokenize.atoms import BLANKS, SIGNS, WORDS
from adapt.model.tokenize.cuts import RULES, cut, table_of

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
    own = [*literals(backend), *_added(backend)]
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


def _added(backend: Tokenizer) -> list[str]:
    return [token.content for token in backend.get_added_tokens_decoder().values()]


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
