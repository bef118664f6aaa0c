"""Which n-grams of a target occur in a pool, by their full hashes: what never occurs there says nothing about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adapt.corpus.shingles import all_ngrams
from adapt.corpus.word_hashes import word_hashes
from adapt.select.chunks import chunks

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

    def in_texts(self, texts: Iterable[str], longest: int) -> np.ndarray:
        """Which of the known grams occur in some texts, bool [known]."""
        found = np.zeros(len(self.hashes), bool)
        for some in chunks(texts, len):
            self.mark(gram_hashes(some, longest)[0], found)
        return found

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
