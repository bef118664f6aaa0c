"""Tests MinHash: estimated against exact similarities, and the share of text pairs that agree in a band of hashes."""

import random
from math import sqrt

import numpy as np
import pytest

from adapt.corpus.minhash import band_hashes, bands_for, estimated_jaccard, share_probability, signatures


def pair(similarity: float, size: int, seed: int) -> tuple[str, str, float]:
    """Returns two texts of `size` words with about the given Jaccard similarity, and their exact similarity."""
    draw = random.Random(seed)
    common = round(2 * size * similarity / (1 + similarity))
    words = [f"w{draw.getrandbits(40)}" for _ in range(2 * size - common)]
    one, other = words[:size], words[size - common :]
    return " ".join(one), " ".join(other), len({*one} & {*other}) / len({*one} | {*other})


@pytest.mark.parametrize("similarity", [0.2, 0.5, 0.8, 0.95])
def test_estimated_similarity_has_the_mean_and_deviation_of_minhash(similarity: float) -> None:
    pairs = [pair(similarity, 150, seed) for seed in range(200)]
    one, other = (signatures([each[side] for each in pairs], 1, 128) for side in (0, 1))
    errors = estimated_jaccard(one, other) - np.array([each[2] for each in pairs])
    spread = sqrt(similarity * (1 - similarity) / 128)
    assert abs(errors.mean()) < 4 * spread / sqrt(len(pairs))
    assert 0.6 * spread < errors.std() < 1.4 * spread


def test_signatures_depend_only_on_the_set_of_shingles() -> None:
    signed = signatures(["a b c a b c", "a b c a b c a b c", "c b a", "a b c a b c"], 3, 64)
    assert signed.shape == (4, 64)
    assert signed.dtype == np.uint32
    assert (signed[0] == signed[[1, 3]]).all()
    assert not (signed[0] == signed[2]).all()
    assert signatures([], 3, 64).shape == (0, 64)


@pytest.mark.parametrize(("threshold", "expected"), [(0.5, (42, 3)), (0.7, (32, 4)), (0.8, (21, 6)), (0.9, (12, 10))])
def test_bands_for_chooses_the_most_rows_with_99_percent_recall(threshold: float, expected: tuple[int, int]) -> None:
    bands, rows = bands_for(threshold, 128)
    assert (bands, rows) == expected
    assert 1 - (1 - threshold**rows) ** bands >= 0.99
    fewer = 128 // (rows + 1)
    assert 1 - (1 - threshold ** (rows + 1)) ** fewer < 0.99


def test_probabilities_in_the_documentation() -> None:
    found = [round(share_probability(s, *bands_for(0.8, 256)), 3) for s in (0.5, 0.6, 0.7, 0.8, 0.9)]
    assert found == [0.118, 0.418, 0.85, 0.997, 1.0]


def test_share_of_pairs_with_a_common_band_matches_the_formula() -> None:
    draw = np.random.default_rng(0)
    bands, rows, pairs = 21, 6, 3000
    for similarity in (0.5, 0.7):
        one = draw.integers(0, 2**32, (pairs, 128), np.uint32)
        other = np.where(draw.random(one.shape) < similarity, one, draw.integers(0, 2**32, one.shape, np.uint32))
        shared = (band_hashes(one, bands, rows) == band_hashes(other, bands, rows)).any(axis=1).mean()
        expected = share_probability(similarity, bands, rows)
        assert abs(shared - expected) < 4 * sqrt(expected * (1 - expected) / pairs)


def test_equal_values_in_different_bands_are_no_common_band() -> None:
    signed = np.array([[1, 2, 1, 2], [7, 7, 1, 2]], np.uint32)
    hashes = band_hashes(signed, 2, 2)
    assert len(np.unique(hashes)) == 3
    assert hashes[0, 1] == hashes[1, 1]
