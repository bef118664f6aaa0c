"""Random numbers by address: each is a function of (seed, stream, epoch, row, position) and of nothing before it.

So masks do not depend on batch size, worker count, device or resume, and the same row gets new ones each epoch.
"""

import torch

_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed integer (SplitMix64's increment)
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685


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
    start = torch.full_like(rows, _wrapped(seed + stream * _GOLDEN))
    for number in (epochs, rows):
        start = _mix(start) + number * _GOLDEN
    positions = torch.arange(1, length + 1)
    bits = _mix(_mix(start)[:, None] + positions * _GOLDEN)
    return (_shift(bits, 11)).double() * 2.0**-53


def _mix(values: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014) in wrapping int64 arithmetic."""
    values = (values ^ _shift(values, 30)) * _MIX_1
    values = (values ^ _shift(values, 27)) * _MIX_2
    return values ^ _shift(values, 31)


def _wrapped(value: int) -> int:
    """A Python integer as int64 holds it."""
    return (value + 2**63) % 2**64 - 2**63


def _shift(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch's own copies the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
