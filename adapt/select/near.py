"""No two near copies of a text are taken: each text is held to those that were taken before it.

By the rules of stage `dedup` (`adapt.corpus.dedup`): the same normalised text, or shingles whose estimated Jaccard
similarity reaches the threshold, found by bands of MinHash signatures. Since texts come the best first, the best of
some copies stays.
"""

from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_128_intdigest

from adapt.corpus.dedup.deduplicate import Alike
from adapt.corpus.dedup.minhash import band_hashes, estimated_jaccard, signatures
from adapt.corpus.shingles import normalised


class Distinct:
    """Remembers what was taken.

    Args:
        alike: what counts as a copy.
    """

    def __init__(self, alike: Alike) -> None:
        self._alike = alike
        self._texts: set[int] = set()
        self._signatures: list[np.ndarray] = []
        self._buckets: dict[int, list[int]] = {}
        """For each hash of a band the signatures that have it."""

    def are_new(self, texts: Sequence[str]) -> list[bool]:
        """Which of some texts are no copies of one before, also among themselves; these count as taken."""
        plain = [normalised(text) for text in texts]
        signed = signatures(plain, self._alike.n, self._alike.permutations)
        bands = band_hashes(signed, *self._alike.bands).tolist()
        return [self._is_new(*known) for known in zip(plain, signed, bands, strict=True)]

    def _is_new(self, text: str, signature: np.ndarray, bands: list[int]) -> bool:
        digest = xxh3_128_intdigest(text.encode("utf-8", "replace"))
        near = sorted({number for band in bands for number in self._buckets.get(band, ())})
        if digest in self._texts:
            return False
        if near:
            known = np.stack([self._signatures[number] for number in near])
            if (estimated_jaccard(known, signature[None]) >= self._alike.threshold).any():
                return False
        self._texts.add(digest)
        for band in bands:
            self._buckets.setdefault(band, []).append(len(self._signatures))
        self._signatures.append(signature)
        return True
