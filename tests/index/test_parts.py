"""Tests writing and reading the parts of an index, which hold vectors: contents, exact distances and refused input."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from adapt.index.exact_search import VectorPart, distances_to, ids_file, rows_file, unit_rows, write_part
from adapt.support.errors import DataError, StorageError
from tests.index.clusters import clustered, ids_for


@pytest.mark.parametrize("batch", [1, 7, 10, 1000])
def test_numpy_reads_the_files_whatever_the_batch_size(tmp_path: Path, batch: int) -> None:
    vectors = clustered(25, 6)
    ids = ids_for(vectors)
    batches = [(ids[start : start + batch], vectors[start : start + batch]) for start in range(0, 25, batch)]
    write_part(batches, tmp_path, 3, 6, 25)
    part = VectorPart.open(tmp_path, 3)
    assert part.ids.tolist() == ids.tolist() == np.load(tmp_path / ids_file(3)).tolist()
    np.testing.assert_array_equal(part.rows, unit_rows(vectors))
    np.testing.assert_array_equal(np.load(tmp_path / rows_file(3)), unit_rows(vectors))
    assert len(list(tmp_path.iterdir())) == 2


def test_ids_of_64_bits_survive(tmp_path: Path) -> None:
    write_part([(np.array([2**24 + 1, 2**62]), np.eye(2))], tmp_path, 0, 2, 2)
    assert VectorPart.open(tmp_path, 0).ids.tolist() == [2**24 + 1, 2**62]


def test_the_error_names_a_damaged_file(tmp_path: Path) -> None:
    write_part([(np.array([1, 2]), np.eye(2))], tmp_path, 0, 2, 2)
    (tmp_path / rows_file(0)).write_bytes(b"no array")
    with pytest.raises(StorageError, match=rows_file(0)):
        VectorPart.open(tmp_path, 0)


def test_distances_are_exact() -> None:
    rows = unit_rows(np.random.default_rng(0).normal(size=(40, 384)))
    exact = [
        1 - sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(rows[0], row, strict=True)) for row in rows
    ]
    assert [Fraction(each) for each in distances_to(rows[0], rows).tolist()] == exact


def test_rows_have_length_one_whatever_the_vectors_length() -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 8)) * np.array([[1e-30], [1e-3], [1], [1e3], [1e30]])
    np.testing.assert_allclose(np.linalg.norm(unit_rows(vectors).astype(float), axis=1), 1, atol=1e-3)


def test_a_zero_vector_has_distance_1_from_all_vectors() -> None:
    rows = unit_rows(np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert distances_to(rows[0], rows).tolist() == [1.0, 1.0]


def test_another_dimension_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape \[4, 3\] instead of \[n, 5\]"):
        unit_rows(np.ones((4, 3)), 5)
