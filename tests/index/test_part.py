"""Vectors on disk: where parts end, what is refused, what comes back."""

from pathlib import Path

import numpy as np
import pytest

from adapt.errors import DataError, StorageError
from adapt.index.part import VectorPart, ids_file, rows_file, write_parts
from adapt.index.rows import unit_rows
from tests.index.made import clustered, ids_for


@pytest.mark.parametrize("batch", [1, 7, 10, 1000])
@pytest.mark.parametrize(("count", "sizes"), [(25, [10, 10, 5]), (20, [10, 10]), (3, [3]), (0, [0])])
def test_parts_do_not_depend_on_the_batches_they_come_in(
    tmp_path: Path, batch: int, count: int, sizes: list[int]
) -> None:
    vectors = clustered(count, 6)
    ids = ids_for(vectors)
    batches = [(ids[start : start + batch], vectors[start : start + batch]) for start in range(0, count, batch)]
    assert write_parts(batches, tmp_path, 6, part_vectors=10) == sizes
    parts = [VectorPart.open(tmp_path, number) for number in range(len(sizes))]
    assert np.concatenate([part.ids for part in parts]).tolist() == ids.tolist()
    np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), unit_rows(vectors))
    assert len(list(tmp_path.iterdir())) == 2 * len(sizes)


def test_files_are_what_numpy_reads_and_let_go_of(tmp_path: Path) -> None:
    write_parts([(np.array([2**24 + 1, 2**62]), np.eye(2))], tmp_path, 2)
    assert np.load(tmp_path / ids_file(0)).tolist() == [2**24 + 1, 2**62]
    assert np.load(tmp_path / rows_file(0)).dtype == np.float16
    part = VectorPart.open(tmp_path, 0)
    part.let_go()
    assert part.ids.tolist() == [2**24 + 1, 2**62]


def test_ids_must_be_whole_numbers_of_64_bits_and_differ(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ids of type float32"):
        write_parts([(np.arange(2, dtype=np.float32), np.eye(2))], tmp_path, 2)
    with pytest.raises(DataError, match="ids come twice, the first is 7"):
        write_parts([(np.array([7, 7]), np.eye(2))], tmp_path, 2)
    assert list(tmp_path.iterdir()) == []  # what was begun is gone


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write_parts([(np.array([1, 2]), np.eye(2))], tmp_path, 2)
    (tmp_path / rows_file(0)).write_bytes(b"no array")
    with pytest.raises(StorageError, match=rows_file(0)):
        VectorPart.open(tmp_path, 0)
