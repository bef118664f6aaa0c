"""Hashes of the words of many texts, by arithmetic over all of their characters in place of a loop over words.

The hash of a word is made of a polynomial of its characters c: mix(sum over i of c_i B^i), modulo 2^64. With the sums P
of c_k B^k over the characters before each place it is mix((P[end] - P[start]) B^-start), so that no word is looked at
by itself.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from unicodedata import normalize

import numpy as np

from adapt.corpus.alphabet import characters_of, table_of_characters
from adapt.corpus.shingles import ALONE, IN_WORDS, INVISIBLE, normalised
from adapt.splitmix import mix

BASE = 0x9E3779B97F4A7C15
"""B: odd, so that it can be divided by."""
INSIDE, BY_ITSELF, UNSEEN = 1, 2, 3
"""Kinds of characters: what words are made of, what is a word, what nobody sees."""
BLOCK = 2**15
"""Characters whose powers of B are at hand in the processor's cache."""


def word_hashes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The words of texts in any form: those that `words(normalised(text))` of `adapt.corpus.shingles` has.

    Returns:
        Their hashes, uint64 [words], and the number of the text of each, int64 [words].
    """
    prepared, characters, kinds = _prepared(texts)
    starts, ends = _bounds(kinds)
    hashes = [_polynomials(characters, starts[some], ends[some]) for some in _blocks(starts, ends)]
    return mix(np.concatenate([np.zeros(0, np.uint64), *hashes])), np.searchsorted(_ends(prepared), starts, "right")


def _prepared(texts: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts in lower case and one form, without what nobody sees; the characters of all, joined, and their kinds."""
    prepared = [(text if text.isascii() else normalize("NFKC", text)).lower() for text in texts]
    characters = characters_of("\n".join(prepared))
    kinds = _kinds().take(characters)
    unseen = np.flatnonzero(kinds == UNSEEN)
    if not len(unseen):
        return prepared, characters, kinds
    for number in np.unique(np.searchsorted(_ends(prepared), unseen, "right")).tolist():
        prepared[number] = normalised(texts[number])
    characters = characters_of("\n".join(prepared))
    return prepared, characters, _kinds().take(characters)


def _ends(texts: Sequence[str]) -> np.ndarray:
    """Where each text ends among all, joined, with what is between: int64 [texts]."""
    return np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)


def _bounds(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where words begin and end."""
    is_inside = np.concatenate([[False], kinds == INSIDE, [False]])
    edges = np.flatnonzero(is_inside[1:] != is_inside[:-1])
    alone = np.flatnonzero(kinds == BY_ITSELF)
    if not len(alone):
        return edges[::2], edges[1::2]
    both = (np.concatenate([edges[::2], alone]), np.concatenate([edges[1::2], alone + 1]))
    starts, ends = (np.sort(bounds, kind="stable") for bounds in both)  # of two sorted parts: fast
    return starts, ends


def _blocks(starts: np.ndarray, ends: np.ndarray) -> Iterator[slice]:
    """Words of about BLOCK characters of text; a longer one is not cut."""
    last = int(ends[-1]) if len(ends) else 0
    cuts = np.unique(np.append(np.searchsorted(starts, np.arange(0, last, BLOCK)), len(starts)))
    yield from (slice(first, end) for first, end in pairwise(cuts.tolist()))


def _polynomials(characters: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The polynomials of words that follow each other, uint64 [words]."""
    first, last = int(starts[0]), int(ends[-1])
    powers, inverses = _powers(max(BLOCK, 1 << (last - first).bit_length()))
    sums = np.zeros(last - first + 1, np.uint64)
    np.cumsum(characters[first:last] * powers[: last - first], out=sums[1:])
    polynomials: np.ndarray = (sums[ends - first] - sums[starts - first]) * inverses[starts - first]
    return polynomials


@cache
def _powers(number: int) -> tuple[np.ndarray, np.ndarray]:
    """B^k and B^-k for so many k, uint64 [number] each."""
    one, *both = np.uint64(1), np.uint64(BASE), np.uint64(pow(BASE, -1, 2**64))
    powers, inverses = (np.concatenate([[one], np.full(number, base)]).cumprod(dtype=np.uint64) for base in both)
    return powers, inverses


@cache
def _kinds() -> np.ndarray:
    """The kind of each character, by its number; 0 for what is between words."""
    return table_of_characters({INSIDE: IN_WORDS, BY_ITSELF: ALONE, UNSEEN: INVISIBLE})
