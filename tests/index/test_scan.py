"""Exact search where a scan in float32 cannot tell vectors apart."""

from pathlib import Path

import numpy as np
import pytest

from adapt.index import scan
from adapt.index.part import VectorPart, write_parts
from adapt.index.rows import unit_rows
from adapt.index.scan import nearest_of
from tests.index.made import brute_force, clustered


def test_more_is_looked_at_while_ties_reach_beyond_what_was_found(tmp_path: Path) -> None:
    """Of 300 copies the smallest ids are wanted, wherever they stand."""
    vectors = np.concatenate([np.tile([[1.0, 2.0, 3.0]], (300, 1)), clustered(200, 3)])
    ids = np.random.default_rng(0).permutation(500).astype(np.int64)
    write_parts([(ids, vectors)], tmp_path, 3)
    found = nearest_of(VectorPart.open(tmp_path, 0), unit_rows(vectors[:1]), 5)
    assert found[1].tolist() == [sorted(ids[:300].tolist())[:5]]


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    vectors = clustered(40, 4)
    write_parts([(np.arange(40), vectors)], tmp_path, 4)
    monkeypatch.setattr(scan, "BLOCK_BYTES", rows * 16)
    found = nearest_of(VectorPart.open(tmp_path, 0), unit_rows(vectors[:5]), 6)
    truth = brute_force(vectors, np.arange(40), vectors[:5], 6)
    np.testing.assert_array_equal(found[1], truth[1])
