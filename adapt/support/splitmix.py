"""Computes pseudo-random numbers as a function of a position, by SplitMix64 (Steele, Lea and Flood 2014)."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio: the increment of the generator's state from one number to the next."""


def mix(values: np.ndarray) -> np.ndarray:
    """Applies the generator's finalizer, which maps each uint64 to another, pseudo-random uint64 (a bijection).

    The argument must be an array. For scalars, numpy would warn about the intended overflows.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
