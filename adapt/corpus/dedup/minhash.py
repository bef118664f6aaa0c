"""MinHash signatures and their bands: which documents may be near-duplicates, without comparing every pair.

The Jaccard similarity s of two documents is that of their sets of shingles (runs of words). Two signatures agree at a
place with probability s (Broder 1997); rensa computes them as in Fast Similarity Sketching (Dahlgaard, Knudsen and
Thorup 2017, arXiv 1704.04370). With b bands of r places each, two documents share at least one band with probability

    P(s) = 1 - (1 - s^r)^b

`bands_for` takes the most rows, so the fewest candidates, with P(threshold) >= 0.99. For a threshold of 0.8 and 256
permutations that is b = 32, r = 8: P is .12 at s = .5, .42 at .6, .85 at .7, .997 at .8 and 1.0 at .9. Candidates are
then held to the threshold by their estimated similarity, the share of places that agree, whose standard deviation is
sqrt(s (1 - s) / 256), .025 at .8.
"""

from collections.abc import Sequence

import numpy as np

from adapt.corpus.shingles import shingles
from adapt.splitmix import GOLDEN, mix

SEED = 42
RECALL_AT_THRESHOLD = 0.99


def signatures(texts: Sequence[str], n: int, permutations: int) -> np.ndarray:
    """MinHash signatures of normalised texts.

    Args:
        texts: as `adapt.corpus.shingles.normalised` gives them.
        n: words of a shingle; a shorter text is one shingle.
        permutations: length of a signature.

    Returns:
        uint32 [texts, permutations].
    """
    from rensa import RMinHash

    sets = [shingles(text, n) for text in texts]
    ends = np.cumsum([0, *map(len, sets)]).astype(np.uint64)
    flat = np.concatenate([*sets, np.zeros(0, np.uint64)])
    rows = RMinHash.digest_matrix_from_flat_token_hashes(flat, ends, permutations, SEED).to_rows() if texts else []
    return np.array(rows, np.uint32).reshape(len(texts), permutations)


def share_probability(similarity: float, bands: int, rows: int) -> float:
    """Probability that two documents of some similarity have a band in common: 1 - (1 - s^r)^b."""
    return float(1 - (1 - similarity**rows) ** bands)


def bands_for(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and rows for a threshold; the rows of a single place where even those find too little."""
    for rows in range(permutations, 0, -1):
        if share_probability(threshold, permutations // rows, rows) >= RECALL_AT_THRESHOLD:
            return permutations // rows, rows
    return permutations, 1


def band_hashes(signed: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """A hash for each band of each signature.

    Args:
        signed: uint32 [documents, permutations].
        bands: number of bands.
        rows: places of a band; those beyond bands x rows are not used.

    Returns:
        uint64 [documents, bands]. Equal places in different bands have different hashes.
    """
    places = signed[:, : bands * rows].reshape(len(signed), bands, rows).astype(np.uint64)
    hashes = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), (len(signed), bands))
    for row in range(rows):
        hashes = mix(hashes * GOLDEN + places[:, :, row])
    return hashes


def estimated_jaccard(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Share of places at which signatures agree.

    Args:
        first: uint32 [pairs, permutations].
        second: the same.

    Returns:
        float64 [pairs].
    """
    shares: np.ndarray = (first == second).mean(axis=1)
    return shares
