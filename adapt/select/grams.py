"""Texts as hashed n-grams of words (DSIR, arXiv 2302.03169, section 3): what selections compare them by.

A gram is a run of 1 to `longest` words of a text, in lower case and without punctuation; its bucket is its hash modulo
the number of buckets. Texts are hashed many at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapt.corpus.shingles import ngrams
from adapt.corpus.word_hashes import word_hashes
from adapt.select.chunks import chunks

if TYPE_CHECKING:
    from scipy.sparse import csr_array


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
        found: np.ndarray = np.bincount(self.owners, weights[self.buckets], self.texts)
        return found

    def sizes(self) -> np.ndarray:
        """The number of grams of each text, int64 [texts]."""
        found: np.ndarray = np.bincount(self.owners, minlength=self.texts)
        return found

    def matrix(self, buckets: int) -> "csr_array":
        """How often each bucket stands in each text, divided by the text's norm: float64 [texts, buckets].

        A text without grams is a row of zeros.
        """
        from scipy.sparse import csr_array, diags_array

        counts = csr_array((np.ones(len(self.buckets)), (self.owners, self.buckets)), (self.texts, buckets))
        norms = np.sqrt(counts.multiply(counts).sum(axis=1))
        return csr_array(diags_array(1 / np.maximum(norms, 1e-300)) @ counts)


def grams(texts: Sequence[str], longest: int, buckets: int) -> Grams:
    """The grams of some texts.

    Args:
        texts: any.
        longest: words of the longest grams.
        buckets: number of them.
    """
    hashes, owner = word_hashes(texts)
    kept = [np.zeros(0, np.uint64)]
    owners = [np.zeros(0, np.int64)]
    for n in range(1, longest + 1):
        runs = ngrams(hashes, n)
        inside = owner[: len(runs)] == owner[n - 1 :][: len(runs)]
        kept.append(runs[inside])
        owners.append(owner[: len(runs)][inside])
    places = np.concatenate(kept) % np.uint64(buckets)
    return Grams(places.astype(np.int64), np.concatenate(owners), len(texts))


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
