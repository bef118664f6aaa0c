"""Random numbers by address: each is a function of (seed, stream, epoch, row, position) and of nothing before it.

So masks do not depend on batch size, worker count, device or resume, and the same row gets new ones each epoch.
"""

import numpy as np
import torch

from adapt.splitmix import GOLDEN, mix


def uniform(seed: int, stream: int, epochs: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    """Uniform numbers in [0, 1).

    Args:
        seed: the run's seed.
        stream: which of several independent numbers a position needs.
        epochs: int64 [B].
        rows: int64 [B], numbers of the rows in the corpus.
        length: positions in a row.

    Returns:
        float64 [B, length].
    """
    state = np.full(len(rows), (seed + stream * int(GOLDEN)) % 2**64, np.uint64)
    for numbers in (epochs, rows):
        state = mix(state) + numbers.numpy().astype(np.uint64) * GOLDEN  # wraps around, as arrays of uint64 do
    positions = np.arange(1, length + 1, dtype=np.uint64)
    bits = mix(mix(state)[:, None] + positions * GOLDEN)
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)
