"""Texts as hashed n-grams of words (DSIR, arXiv 2302.03169, section 3), by which selections compare them.

A gram is a run of 1 to `longest` words of a text, in lower case and without punctuation. The range of hashes is
divided into equal parts, which are the buckets. Texts are hashed many at a time.

A bucket holds many grams, so a bucket that occurs in a pool does not show that a gram does. `KnownGrams` finds which
n-grams of a target occur in a pool by their full hashes; those that never occur there are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from adapt.corpus.shingles import all_ngrams
from adapt.corpus.word_hashes import word_hashes

_FILTER_BITS = 22
"""A table of 2^22 entries says quickly of most hashes that they are not among some known ones."""


@dataclass(frozen=True)
class KnownGrams:
    """The different grams of some texts, which are looked for in other texts."""

    hashes: np.ndarray
    """uint64, rising."""

    @classmethod
    def of(cls, texts: Iterable[str], longest: int) -> "KnownGrams":
        """Collects the grams of some texts.

        Args:
            texts: any.
            longest: words of the longest grams.
        """
        found = [np.zeros(0, np.uint64)]
        for some in chunks(texts, len):
            found.append(np.unique(gram_hashes(some, longest)[0]))
        return cls(np.unique(np.concatenate(found)))

    def mark(self, hashes: np.ndarray, found: np.ndarray) -> None:
        """Marks the known grams that are among some others.

        Args:
            hashes: of grams, uint64 [n].
            found: bool [known]; it is changed.
        """
        if not len(self.hashes):
            return
        maybe = hashes[self._table.take(hashes >> np.uint64(64 - _FILTER_BITS))]
        places = np.minimum(np.searchsorted(self.hashes, maybe), len(self.hashes) - 1)
        found[places[self.hashes[places] == maybe]] = True

    def only(self, found: np.ndarray) -> "KnownGrams":
        """Those that are marked."""
        return KnownGrams(self.hashes[found])

    def have(self, hashes: np.ndarray) -> np.ndarray:
        """Whether each of some grams is known, bool [n]."""
        if not len(self.hashes):
            return np.zeros(len(hashes), bool)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known: np.ndarray = self.hashes[places] == hashes
        return known

    @cached_property
    def _table(self) -> np.ndarray:
        table = np.zeros(2**_FILTER_BITS, bool)
        table[self.hashes >> np.uint64(64 - _FILTER_BITS)] = True
        return table


def gram_hashes(texts: Sequence[str], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the grams of some texts, uint64 [grams], and the number of the text of each, int64 [grams].

    Args:
        texts: any.
        longest: words of the longest grams.
    """
    return hashes_of_runs(*word_hashes(texts), longest)


def hashes_of_runs(hashes: np.ndarray, owners: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """The same from the hashes of words, uint64 [words], and the text, or the window, of each, int64 [words]."""
    kept, kept_owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for n, runs in all_ngrams(hashes, range(1, longest + 1)):
        is_inside = owners[n - 1 :] == owners[: len(runs)] if n > 1 else slice(None)
        kept.append(runs[is_inside])
        kept_owners.append(owners[: len(runs)][is_inside])
    return np.concatenate(kept), np.concatenate(kept_owners)


Buckets = Annotated[int, Field(gt=0, le=2**32)]
"""A number of them."""
WINDOW = 10
"""Words of a window, about. A text of more words is cut into windows of equal length."""
UNIT = 2**30
"""What the grams of one text weigh together where every text weighs the same. A whole number, so that sums are exact in
any order."""
_HALF = np.uint64(32)


class Grams(NamedTuple):
    """The grams of some texts, in no order that matters."""

    buckets: np.ndarray
    """The bucket of each gram: int64 [grams]."""
    owners: np.ndarray
    """The text that it stands in: int64 [grams]."""
    texts: int
    """Number of texts, also those without grams."""

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """The sum of the weights of each text's grams, float64 [texts].

        Args:
            weights: of the buckets, float64 [buckets].
        """
        starts = _starts(self.owners)
        parts = np.add.reduceat(weights.take(self.buckets), starts) if len(starts) else np.zeros(0)
        found: np.ndarray = np.bincount(self.owners[starts], parts, self.texts)
        return found

    def sizes(self) -> np.ndarray:
        """The number of grams of each text, int64 [texts]."""
        found: np.ndarray = np.bincount(self.owners, minlength=self.texts)
        return found

    def norms(self, buckets: int) -> np.ndarray:
        """The Euclidean norm of how often each bucket stands in each text, float64 [texts]."""
        _, counts, ends = self.different(buckets)
        return norms_of(counts, ends)

    def different(self, buckets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The buckets that each text has, plus its number x buckets; the grams of each; where those of a text end."""
        together = (self.owners * buckets + self.buckets).astype(np.min_scalar_type(max(self.texts, 1) * buckets))
        together.sort()  # numbers of fewer bytes take less time
        starts = _starts(together)
        different = together[starts]
        ends = np.searchsorted(different, np.arange(1, self.texts + 1, dtype=np.int64) * buckets)
        return different, np.diff(starts, append=len(together)), ends


def norms_of(counts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Euclidean norms of parts of some counts, each of which ends at one place, float64."""
    before = np.append(0, np.cumsum(counts * counts))
    norms: np.ndarray = np.sqrt(np.diff(before[ends], prepend=0))
    return norms


def _starts(sorted_parts: np.ndarray) -> np.ndarray:
    """Where another value begins, int64."""
    is_other = sorted_parts[1:] != sorted_parts[:-1]
    return np.append(0, np.flatnonzero(is_other) + 1) if len(sorted_parts) else np.zeros(0, np.int64)


class Windows(NamedTuple):
    """Texts cut into windows of about WINDOW words."""

    grams: Grams
    """The grams of each window; the `owners` are the numbers of windows."""
    texts: np.ndarray
    """The text that each window is of, rising, int64 [windows]. Every text has a window, also one without words."""

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean of the values of each text's windows, float64 [texts]."""
        found: np.ndarray = np.bincount(self.texts, values) / np.bincount(self.texts)
        return found


def grams(texts: Sequence[str], longest: int, buckets: int, known: KnownGrams | None = None) -> Grams:
    """The grams of some texts.

    Args:
        texts: any.
        longest: words of the longest grams.
        buckets: number of them, at most 2^32.
        known: others than these are left out; None for none.
    """
    return in_buckets(*gram_hashes(texts, longest), len(texts), buckets, known)


def windows(texts: Sequence[str], longest: int, buckets: int, known: KnownGrams | None = None) -> Windows:
    """The grams of the windows of some texts. No gram reaches across the end of a window.

    Args:
        texts: any.
        longest: words of the longest grams.
        buckets: number of them, at most 2^32.
        known: others than these are left out; None for none.
    """
    hashes, owners = word_hashes(texts)
    words = np.bincount(owners, minlength=len(texts))
    counts = np.maximum(np.rint(words / WINDOW).astype(np.int64), 1)
    places = np.arange(len(owners)) - (np.cumsum(words) - words)[owners]
    inside = places * counts[owners] // words[owners]
    numbers = (np.cumsum(counts) - counts)[owners] + inside
    found = in_buckets(*hashes_of_runs(hashes, numbers, longest), int(counts.sum()), buckets, known)
    return Windows(found, np.repeat(np.arange(len(texts)), counts))


def window_grams(longest: int) -> int:
    """How many grams a window of WINDOW words has."""
    return sum(max(WINDOW - n + 1, 0) for n in range(1, longest + 1))


def in_buckets(
    hashes: np.ndarray, owners: np.ndarray, texts: int, buckets: int, known: KnownGrams | None = None
) -> Grams:
    """Grams from their hashes, see `gram_hashes`; without those that are not known, where some are named."""
    if known is not None:
        is_known = known.have(hashes)
        hashes, owners = hashes[is_known], owners[is_known]
    return Grams(_bucket_of(hashes, buckets).view(np.int64), owners, texts)


def _bucket_of(hashes: np.ndarray, buckets: int) -> np.ndarray:
    """The part of the range of hashes that each is in, of so many parts alike: uint64, quicker than a remainder."""
    return (hashes >> _HALF) * np.uint64(buckets) >> _HALF


def gram_chunks(texts: Iterable[str], longest: int, buckets: int) -> Iterator[Grams]:
    """The grams of texts without end, a chunk of them at a time."""
    for some in chunks(texts, len):
        yield grams(some, longest, buckets)


def gram_counts(texts: Iterable[str], longest: int, buckets: int) -> np.ndarray:
    """How often each bucket stands in all texts together, float64 [buckets]."""
    counts = np.zeros(buckets)
    for some in gram_chunks(texts, longest, buckets):
        counts += np.bincount(some.buckets, minlength=buckets)
    return counts


def gram_shares(texts: Iterable[str], longest: int, buckets: int, known: KnownGrams | None = None) -> np.ndarray:
    """The grams in each bucket, each text weighing the same whatever its length, about UNIT: int64 [buckets].

    Args:
        texts: any.
        longest: words of the longest grams.
        buckets: number of them.
        known: other grams than these are left out, and do not count in the length of a text; None for none.
    """
    shares = np.zeros(buckets, np.int64)
    for some in chunks(texts, len):
        shares += equal_shares(grams(some, longest, buckets, known), buckets)
    return shares


def equal_shares(found: Grams, buckets: int) -> np.ndarray:
    """The same for the grams of some texts."""
    weights = UNIT // np.maximum(found.sizes(), 1)
    counted: np.ndarray = np.bincount(found.buckets, weights[found.owners], buckets).astype(np.int64)
    return counted


T = TypeVar("T")
MOST_TEXTS = 512
MOST_CHARACTERS = 500_000
"""A single text may be longer. Hashes, places and shingles take some 50 bytes a character."""


def chunks(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in their order, at most MOST_TEXTS of them and MOST_CHARACTERS characters at a time, and at least one.

    Args:
        items: texts, or what holds one.
        length: the characters of one.
    """
    some: list[T] = []
    characters = 0
    for item in items:
        size = length(item)
        if some and (len(some) == MOST_TEXTS or characters + size > MOST_CHARACTERS):
            yield some
            some, characters = [], 0
        some.append(item)
        characters += size
    if some:
        yield some
