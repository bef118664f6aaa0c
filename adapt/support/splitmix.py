"""SplitMix64 (Steele, Lea and Flood 2014): numbers that look random and are functions of an address alone."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio: the generator's step from one number's address to that of the next."""


def mix(values: np.ndarray) -> np.ndarray:
    """Its finalizer, a bijection of uint64 that looks random. Arrays wrap around in silence; single numbers warn."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
