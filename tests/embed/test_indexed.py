"""The mean of all vectors is taken from each before they are indexed."""

from pathlib import Path

import numpy as np

from adapt.embed.indexed import build_on_cluster
from adapt.embed.written import chunk_file, write_vectors
from adapt.index.build import centre_in, rows_at
from adapt.index.rows import centred, scaled


def test_vectors_with_much_in_common_are_told_apart_by_the_rest(tmp_path: Path, ray_cluster: None) -> None:
    rng = np.random.default_rng(0)
    vectors = (10 + rng.normal(size=(30, 8))).astype(np.float32)
    vectors[7] = 0  # a text of which nothing is known
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
