"""Texts as hashed n-grams of words (DSIR, arXiv 2302.03169, section 3): what selections compare them by.

A gram is a run of 1 to `longest` words of a text, in lower case and without punctuation. The range of hashes is cut
into equal parts, which are the buckets. Texts are hashed many at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from pydantic import Field

from adapt.corpus.shingles import all_ngrams
from adapt.corpus.word_hashes import word_hashes
from adapt.select.chunks import chunks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Buckets = Annotated[int, Field(gt=0, le=2**32)]
"""A number of them."""
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
        _, counts, ends = self._different(buckets)
        return _norms(counts, ends)

    def matrix(self, buckets: int) -> "csr_array":
        """How often each bucket stands in each text, divided by the text's norm: float64 [texts, buckets].

        A text without grams is a row of zeros.
        """
        from scipy.sparse import csr_array

        different, counts, ends = self._different(buckets)
        places = different % buckets
        shares = counts / np.repeat(_norms(counts, ends), np.diff(ends, prepend=0))
        number = np.int32 if buckets <= np.iinfo(np.int32).max else np.int64  # some solvers take the first alone
        return csr_array((shares, places.astype(number), np.append(0, ends).astype(number)), (self.texts, buckets))

    def _different(self, buckets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The buckets that each text has, plus its number x buckets; the grams of each; where those of a text end."""
        together = (self.owners * buckets + self.buckets).astype(np.min_scalar_type(self.texts * buckets))
        together.sort()  # numbers of fewer bytes take less time
        starts = _starts(together)
        different = together[starts]
        ends = np.searchsorted(different, np.arange(1, self.texts + 1, dtype=np.int64) * buckets)
        return different, np.diff(starts, append=len(together)), ends


def _norms(counts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Euclidean norms of parts of some counts, each of which ends at one place, float64."""
    before = np.append(0, np.cumsum(counts * counts))
    norms: np.ndarray = np.sqrt(np.diff(before[ends], prepend=0))
    return norms


def _starts(sorted_parts: np.ndarray) -> np.ndarray:
    """Where another value begins, int64."""
    is_other = sorted_parts[1:] != sorted_parts[:-1]
    return np.append(0, np.flatnonzero(is_other) + 1) if len(sorted_parts) else np.zeros(0, np.int64)


def grams(texts: Sequence[str], longest: int, buckets: int) -> Grams:
    """The grams of some texts.

    Args:
        texts: any.
        longest: words of the longest grams.
        buckets: number of them, at most 2^32.
    """
    hashes, owners = word_hashes(texts)
    kept, kept_owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for n, runs in all_ngrams(hashes, range(1, longest + 1)):
        is_inside = owners[n - 1 :] == owners[: len(runs)] if n > 1 else slice(None)
        kept.append(_bucket_of(runs, buckets)[is_inside])
        kept_owners.append(owners[: len(runs)][is_inside])
    return Grams(np.concatenate(kept).view(np.int64), np.concatenate(kept_owners), len(texts))


def _bucket_of(hashes: np.ndarray, buckets: int) -> np.ndarray:
    """The part of the range of hashes that each is in, of so many parts alike: uint64, quicker than a remainder."""
    return (hashes >> _HALF) * np.uint64(buckets) >> _HALF


def gram_chunks(texts: Iterable[str], longest: int, buckets: int) -> Iterator[Grams]:
    """The grams of texts without end, a chunk of them at a time."""
    for some in chunks(texts, len):
        yield grams(some, longest, buckets)


def gram_matrix(texts: Sequence[str], longest: int, buckets: int) -> "csr_array":
    """`Grams.matrix` of all texts: float64 [texts, buckets]."""
    from scipy.sparse import vstack

    parts = [some.matrix(buckets) for some in gram_chunks(texts, longest, buckets)]
    return vstack(parts or [grams([], longest, buckets).matrix(buckets)], format="csr")


def gram_counts(texts: Iterable[str], longest: int, buckets: int) -> np.ndarray:
    """How often each bucket stands in all texts together, float64 [buckets]."""
    counts = np.zeros(buckets)
    for some in gram_chunks(texts, longest, buckets):
        counts += np.bincount(some.buckets, minlength=buckets)
    return counts
