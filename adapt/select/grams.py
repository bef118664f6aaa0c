"""Represents texts as hashed n-grams of words, to compare them (DSIR, arXiv 2302.03169, section 3).

A gram is a run of 1 to `longest` words of a text, in lower case and without punctuation. The range of the grams' hashes
is divided into `buckets` equal parts, called buckets, at most 2^32. If functions get `known` grams, they leave out all
other grams, as if the texts did not contain them. None keeps all grams.

Many grams share a bucket, so an occupied bucket does not show that a certain gram occurs. `KnownGrams` compares full
hashes to find which n-grams of a target occur in a pool. The other n-grams can then be ignored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from adapt.corpus.shingles import all_ngrams, word_hashes

_FILTER_BITS = 22
"""Number of bits that index a table of 2^22 entries. The table quickly rules out most unknown hashes."""


@dataclass(frozen=True)
class KnownGrams:
    """The distinct grams of some texts, which can be searched in other texts."""

    hashes: np.ndarray
    """Hashes of the grams in ascending order, uint64."""

    @classmethod
    def of(cls, texts: Iterable[str], longest: int) -> "KnownGrams":
        """Collects the distinct grams of texts."""
        found = [np.zeros(0, np.uint64)]
        for some in chunks(texts, len):
            found.append(np.unique(gram_hashes(some, longest)[0]))
        return cls(np.unique(np.concatenate(found)))

    def mark(self, hashes: np.ndarray, found: np.ndarray) -> None:
        """Sets `found` to True for each known gram that is in a list of other grams.

        Args:
            hashes: hashes of the other grams, uint64 [n].
            found: whether each known gram occurs, bool [known]; changed in place.
        """
        if not len(self.hashes):
            return
        maybe = hashes[self._table.take(hashes >> np.uint64(64 - _FILTER_BITS))]
        places = np.minimum(np.searchsorted(self.hashes, maybe), len(self.hashes) - 1)
        found[places[self.hashes[places] == maybe]] = True

    def only(self, found: np.ndarray) -> "KnownGrams":
        """Returns a new object with only those grams for which `found` is True.

        `found` has one value per known gram: bool [known].
        """
        return KnownGrams(self.hashes[found])

    def have(self, hashes: np.ndarray) -> np.ndarray:
        """Returns whether each of the given grams is among the known grams, bool [n]."""
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
    """Returns the hashes of the texts' grams, uint64 [grams], and the index of each gram's text, int64 [grams]."""
    return hashes_of_runs(*word_hashes(texts), longest)


def hashes_of_runs(hashes: np.ndarray, owners: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes the grams of texts or windows from the hashes of their words.

    Args:
      hashes: hashes of the words, uint64 [words].
      owners: index of each word's text or window, int64 [words].
      longest: length of the longest grams [words].

    Returns:
      Hashes of the grams, uint64 [grams], and the index of each gram's text or window, int64 [grams].
    """
    kept, kept_owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for n, runs in all_ngrams(hashes, range(1, longest + 1)):
        is_inside = owners[n - 1 :] == owners[: len(runs)] if n > 1 else slice(None)
        kept.append(runs[is_inside])
        kept_owners.append(owners[: len(runs)][is_inside])
    return np.concatenate(kept), np.concatenate(kept_owners)


Buckets = Annotated[int, Field(gt=0, le=2**32)]
"""Integer type for numbers of buckets, from 1 to 2^32."""
WINDOW = 10
"""Approximate length of a window [words]. A longer text is cut into windows of equal length."""
UNIT = 2**30
"""Total weight of the grams of one text, in counts that give every text the same weight. It is an integer, so that sums
of weights are exact in any order."""
_HALF = np.uint64(32)


class Grams(NamedTuple):
    """The grams of some texts, in arbitrary order."""

    buckets: np.ndarray
    """Bucket of each gram, int64 [grams]."""
    owners: np.ndarray
    """Index of the text that each gram comes from, int64 [grams]."""
    texts: int
    """Number of texts, including texts without grams."""

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Returns the sum of the weights of each text's grams, float64 [texts].

        Args:
            weights: weights of the buckets, float64 [buckets].
        """
        starts = _starts(self.owners)
        parts = np.add.reduceat(weights.take(self.buckets), starts) if len(starts) else np.zeros(0)
        found: np.ndarray = np.bincount(self.owners[starts], parts, self.texts)
        return found

    def sizes(self) -> np.ndarray:
        """Returns the number of grams of each text, int64 [texts]."""
        found: np.ndarray = np.bincount(self.owners, minlength=self.texts)
        return found

    def norms(self, buckets: int) -> np.ndarray:
        """Returns the Euclidean norm of each text's bucket counts, float64 [texts]."""
        _, counts, ends = self.different(buckets)
        return norms_of(counts, ends)

    def different(self, buckets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the distinct buckets of each text.

        Returns:
          Three arrays. The first two have an entry per text and distinct bucket: the bucket plus `buckets` times the
          index of the text, and the number of the text's grams in the bucket. The third has the end of each text's
          entries.
        """
        together = (self.owners * buckets + self.buckets).astype(np.min_scalar_type(max(self.texts, 1) * buckets))
        together.sort()  # sorting is fast, because the integer type is as small as possible
        starts = _starts(together)
        different = together[starts]
        ends = np.searchsorted(different, np.arange(1, self.texts + 1, dtype=np.int64) * buckets)
        return different, np.diff(starts, append=len(together)), ends


def norms_of(counts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the Euclidean norm of each part of `counts`, float64 [parts]. `ends` are the ends of the parts."""
    before = np.append(0, np.cumsum(counts * counts))
    norms: np.ndarray = np.sqrt(np.diff(before[ends], prepend=0))
    return norms


def _starts(sorted_parts: np.ndarray) -> np.ndarray:
    """Returns the index of the first element of each run of equal values, int64."""
    is_other = sorted_parts[1:] != sorted_parts[:-1]
    return np.append(0, np.flatnonzero(is_other) + 1) if len(sorted_parts) else np.zeros(0, np.int64)


class Windows(NamedTuple):
    """Texts cut into windows of about WINDOW words."""

    grams: Grams
    """Grams of all windows. In this object, `owners` has the index of each gram's window instead of its text."""
    texts: np.ndarray
    """Index of each window's text in ascending order, int64 [windows]. Every text has a window, even a text without
    words."""

    def means(self, values: np.ndarray) -> np.ndarray:
        """Returns, for each text, the mean of the values of its windows, float64 [texts]."""
        found: np.ndarray = np.bincount(self.texts, values) / np.bincount(self.texts)
        return found


def grams(texts: Sequence[str], longest: int, buckets: int, known: KnownGrams | None = None) -> Grams:
    """Returns the grams of texts."""
    return in_buckets(*gram_hashes(texts, longest), len(texts), buckets, known)


def windows(texts: Sequence[str], longest: int, buckets: int, known: KnownGrams | None = None) -> Windows:
    """Returns the grams of the windows of texts. No gram crosses the end of a window."""
    hashes, owners = word_hashes(texts)
    words = np.bincount(owners, minlength=len(texts))
    counts = np.maximum(np.rint(words / WINDOW).astype(np.int64), 1)
    places = np.arange(len(owners)) - (np.cumsum(words) - words)[owners]
    inside = places * counts[owners] // words[owners]
    numbers = (np.cumsum(counts) - counts)[owners] + inside
    found = in_buckets(*hashes_of_runs(hashes, numbers, longest), int(counts.sum()), buckets, known)
    return Windows(found, np.repeat(np.arange(len(texts)), counts))


def window_grams(longest: int) -> int:
    """Returns the number of grams in a window of WINDOW words."""
    return sum(max(WINDOW - n + 1, 0) for n in range(1, longest + 1))


def in_buckets(
    hashes: np.ndarray, owners: np.ndarray, texts: int, buckets: int, known: KnownGrams | None = None
) -> Grams:
    """Builds `Grams` from hashes of n-grams (see `gram_hashes`). If `known` is given, other hashes are left out."""
    if known is not None:
        is_known = known.have(hashes)
        hashes, owners = hashes[is_known], owners[is_known]
    return Grams(_bucket_of(hashes, buckets).view(np.int64), owners, texts)


def _bucket_of(hashes: np.ndarray, buckets: int) -> np.ndarray:
    """Returns the bucket of each hash, uint64.

    Buckets are equal parts of the range of hashes. Computing the part is faster than computing a remainder.
    """
    return (hashes >> _HALF) * np.uint64(buckets) >> _HALF


def gram_chunks(texts: Iterable[str], longest: int, buckets: int) -> Iterator[Grams]:
    """Yields the grams of texts, one chunk at a time."""
    for some in chunks(texts, len):
        yield grams(some, longest, buckets)


def gram_counts(texts: Iterable[str], longest: int, buckets: int) -> np.ndarray:
    """Returns the number of grams per bucket in all texts together, float64 [buckets]."""
    counts = np.zeros(buckets)
    for some in gram_chunks(texts, longest, buckets):
        counts += np.bincount(some.buckets, minlength=buckets)
    return counts


def gram_shares(texts: Iterable[str], longest: int, buckets: int, known: KnownGrams | None = None) -> np.ndarray:
    """Returns the total weight of the grams in each bucket, over all texts, int64 [buckets].

    Every gram of a text has the same weight, and the grams of each text together weigh UNIT, up to rounding.
    """
    shares = np.zeros(buckets, np.int64)
    for some in chunks(texts, len):
        shares += equal_shares(grams(some, longest, buckets, known), buckets)
    return shares


def equal_shares(found: Grams, buckets: int) -> np.ndarray:
    """Returns the total weight of some grams in each bucket, int64 [buckets].

    Every gram of a text has the same weight, and the grams of each text together weigh UNIT, up to rounding.
    """
    weights = UNIT // np.maximum(found.sizes(), 1)
    counted: np.ndarray = np.bincount(found.buckets, weights[found.owners], buckets).astype(np.int64)
    return counted


T = TypeVar("T")
MOST_TEXTS = 512
MOST_CHARACTERS = 500_000
"""Maximum number of characters in a chunk of several texts. Hashes, positions and shingles take about 50 bytes per
character."""


def chunks(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields chunks of at most MOST_TEXTS items and MOST_CHARACTERS characters, with at least one item each.

    `length` returns the number of characters of an item.
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
