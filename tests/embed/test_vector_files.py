"""Tests files of vectors: writing them, reading them, and building an index from ranges of their rows."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from adapt.embed.vector_files import (
    build_on_cluster,
    chunk_file,
    known_counts,
    read_vectors,
    stored_vectors,
    vector_files,
    write_range,
    write_vectors,
)
from adapt.index.exact_search import VectorPart, centred, scaled, unit_rows
from adapt.index.index_files import centre_in, rows_at
from adapt.support.errors import StorageError

COUNTS = {"documents": 3, "seen": 30, "unknown": 1}


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_ids_vectors_and_counts_come_back(tmp_path: Path, kind: type) -> None:
    file, ids = tmp_path / chunk_file(7, 1), np.array([2**24 + 1, 2**62, 3])
    vectors = np.random.default_rng(0).normal(size=(3, 5)).astype(kind)
    assert known_counts(file) is None
    write_vectors(file, ids, vectors, COUNTS)
    found = read_vectors(file)
    assert (found[0].dtype, found[1].dtype) == (np.int64, kind)
    np.testing.assert_array_equal(found[0], ids)
    np.testing.assert_array_equal(found[1], vectors)
    assert known_counts(file) == COUNTS


def test_files_come_in_the_order_of_the_texts(tmp_path: Path) -> None:
    for item, chunk in ((10, 0), (2, 11), (2, 2)):
        write_vectors(tmp_path / chunk_file(item, chunk), np.array([item * 100 + chunk]), np.ones((1, 2), "f4"), {})
    assert [ids.tolist() for ids, _ in stored_vectors(tmp_path)] == [[202], [211], [1000]]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / chunk_file(0, 0)
    file.write_bytes(b"no parquet")
    for read in (read_vectors, known_counts):
        with pytest.raises(StorageError, match=file.name):
            read(file)


@pytest.mark.parametrize("part", [1, 4, 5, 100])
def test_parts_of_an_index_are_ranges_of_all_vectors(tmp_path: Path, part: int) -> None:
    sizes, vectors = [3, 1, 6, 4], np.random.default_rng(0).normal(size=(14, 2)).astype(np.float32)
    begins = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    for chunk, (begin, end) in enumerate(pairwise(begins)):
        write_vectors(tmp_path / chunk_file(0, chunk), np.arange(begin, end), vectors[begin:end], {})
    write = partial(write_range, vector_files(tmp_path), begins, tmp_path, 2, part, np.zeros(2))
    numbers = range(-(-14 // part))
    assert sum(write(number) for number in reversed(numbers)) == 14
    parts = [VectorPart.open(tmp_path, number) for number in numbers]
    assert np.concatenate([each.ids for each in parts]).tolist() == list(range(14))
    np.testing.assert_array_equal(np.concatenate([each.rows for each in parts]), unit_rows(vectors))


def test_a_chunk_that_has_changed_is_not_written_yet(tmp_path: Path) -> None:
    """A changed chunk counts as missing, so a resumed run embeds it again."""
    file, vectors = tmp_path / chunk_file(0, 0), np.random.default_rng(0).normal(size=(3, 5)).astype(np.float16)
    write_vectors(file, np.arange(3), vectors, COUNTS)
    content = bytearray(file.read_bytes())
    content[content.index(vectors.tobytes()) + 9] ^= 0x40
    file.write_bytes(content)
    assert not np.array_equal(read_vectors(file)[1], vectors)
    assert known_counts(file) is None


def test_vectors_with_a_large_common_part_are_separated_by_the_rest(tmp_path: Path, ray_cluster: None) -> None:
    rng = np.random.default_rng(0)
    vectors = (10 + rng.normal(size=(30, 8))).astype(np.float32)
    vectors[7] = 0  # this vector belongs to a text without known words
    for chunk, rows in enumerate((slice(0, 11), slice(11, 30))):
        write_vectors(tmp_path / chunk_file(0, chunk), np.arange(30)[rows], vectors[rows], {})
    index = tmp_path / "index"
    index.mkdir()
    build_on_cluster(tmp_path, index, "toy", 8, memory_bytes=2**30, queries=0, kind="flat", part_vectors=9)
    known = np.delete(np.arange(30), 7)
    centre = scaled(vectors[known]).mean(0)
    found = centre_in(index)
    assert found is not None
    np.testing.assert_allclose(found, centre, atol=1e-12)
    rows = rows_at(index, np.arange(30)).astype(np.float64)
    assert not rows[7].any()
    np.testing.assert_allclose(rows[known], scaled(centred(vectors[known], centre)), atol=1e-3)
    others = ~np.eye(29, dtype=bool)
    assert (rows[known] @ rows[known].T)[others].mean() < 0.1
    assert (scaled(vectors[known]) @ scaled(vectors[known]).T)[others].mean() > 0.9
