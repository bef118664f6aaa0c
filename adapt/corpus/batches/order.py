"""The order of training: which row stands at which place, from (seed, epoch) alone, in constant time and memory."""

import numpy as np

from adapt.splitmix import GOLDEN, mix

_ROUNDS = 6


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """A pseudo-random permutation of range(size), evaluated at some places.

    A Feistel network permutes the next power of four; results outside the range walk on along their cycle until they
    are inside, which keeps it a permutation (Black and Rogaway 2002). No table is kept, so a corpus of any size costs
    nothing and any place can be asked first.

    Args:
        places: int64 array of places in range(size).
        size: number of rows.
        seed: the run's seed.
        epoch: each epoch has its own permutation.

    Returns:
        int64 array of rows, of the same shape.

    Raises:
        ValueError: a place is asked for and there is no row, among which the walk would never end.
    """
    if places.size and size < 1:
        raise ValueError(f"a place among {size} rows")
    half = np.uint64(max(1, (int(size - 1).bit_length() + 1) // 2))
    base = mix(np.array([seed % 2**64], np.uint64) + mix(np.array([epoch + 1], np.uint64)))
    keys = mix(base + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * GOLDEN)
    rows = _feistel(places.astype(np.uint64), half, keys)
    while (outside := rows >= size).any():
        rows[outside] = _feistel(rows[outside], half, keys)
    return rows.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    low = np.uint64((1 << int(half)) - 1)
    left, right = values >> half, values & low
    for key in keys:
        left, right = right, left ^ (mix(right + key) & low)
    return (left << half) | right


def samples(step: int, rank: int, world: int, global_batch_size: int) -> np.ndarray:
    """The samples of a run that a rank trains on in a step, int64 [global_batch_size / world].

    Step s takes samples [s G, (s + 1) G), rank r of W the r-th of their W equal parts. What sample j is, is a function
    of j alone (`adapt.corpus.batches.mixture`), so a step's global batch depends neither on W nor on any step before.
    """
    share = global_batch_size // world
    return np.arange(share, dtype=np.int64) + step * global_batch_size + rank * share
