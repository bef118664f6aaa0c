"""Tests that search is exact even if a scan in float32 cannot distinguish vectors."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.index import exact_search
from adapt.index.exact_search import NOBODY, VectorPart, merge_nearest, nearest_first, nearest_of, unit_rows, write_part
from tests.index.clusters import brute_force, clustered


def test_search_goes_on_while_ties_reach_beyond_the_candidates(tmp_path: Path) -> None:
    """300 vectors are equal. The search must return the smallest of their ids, although ids are in random order."""
    vectors = np.concatenate([np.tile([[1.0, 2.0, 3.0]], (300, 1)), clustered(200, 3)])
    ids = np.random.default_rng(0).permutation(500).astype(np.int64)
    write_part([(ids, vectors)], tmp_path, 0, 3, 500)
    found = nearest_of(VectorPart.open(tmp_path, 0), unit_rows(vectors[:1]), 5)
    assert found[1].tolist() == [sorted(ids[:300].tolist())[:5]]


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_results_do_not_depend_on_the_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    vectors = clustered(40, 4)
    write_part([(np.arange(40), vectors)], tmp_path, 0, 4, 40)
    monkeypatch.setattr(exact_search, "BLOCK_BYTES", rows * 16)
    found = nearest_of(VectorPart.open(tmp_path, 0), unit_rows(vectors[:5]), 6)
    truth = brute_force(vectors, np.arange(40), vectors[:5], 6)
    np.testing.assert_array_equal(found[1], truth[1])


DISTANCES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5]), min_size=1, max_size=40)


@given(DISTANCES, st.integers(1, 12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_results_do_not_depend_on_shards_and_order(distances: list[float], k: int, draw: object, shards: int) -> None:
    ids = list(range(2**24, 2**24 + len(distances)))
    draw.shuffle(ids)  # type: ignore[attr-defined]
    expected = sorted(zip(distances, ids, strict=True))[:k]
    owner = [draw.randrange(shards) for _ in ids]  # type: ignore[attr-defined]
    parts = []
    for shard in range(shards):
        mine = [place for place, number in enumerate(owner) if number == shard]
        given_ = np.array([[distances[n] for n in mine]]), np.array([[ids[n] for n in mine]], np.int64)
        parts.append(nearest_first(*given_, k))
    draw.shuffle(parts)  # type: ignore[attr-defined]
    found = merge_nearest(parts, k)
    assert list(zip(found[0][0].tolist(), found[1][0].tolist(), strict=True))[: len(expected)] == expected
    assert (found[1][0][len(expected) :] == NOBODY).all()
    assert found[1].dtype == np.int64
