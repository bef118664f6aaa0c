"""What share of the nearest is found, and the width that it takes."""

from pathlib import Path

import numpy as np
import pytest

from adapt.errors import DataError
from adapt.index.recall import recall_of, width_for
from adapt.index.search import VectorIndex
from tests.index.made import built, clustered


def test_recall_is_the_share_of_true_neighbours_and_ties_are_as_good() -> None:
    ids = np.zeros((2, 2), np.int64)
    truth = np.array([[0.1, 0.2], [0.3, 0.3]]), ids
    assert recall_of(truth, truth) == 1
    assert recall_of((np.array([[0.1, 0.4], [0.3, 0.3]]), ids), truth) == 0.75
    assert recall_of((np.array([[0.2, np.inf], [0.4, 0.5]]), ids), truth) == 0.25


def test_the_width_grows_until_enough_is_found(tmp_path: Path) -> None:
    vectors, queries = np.random.default_rng(0).normal(size=(3000, 24)), clustered(40, 24, seed=3)
    built(tmp_path, vectors, "ivf", part=1000)
    index = VectorIndex.open(tmp_path)
    few, many = (width_for(index, queries, 10, least) for least in (0.1, 0.97))
    assert few.width == 8
    assert many.width is not None
    assert many.width > 8
    assert few.recall < 0.97 <= many.recall
    truth = index.search_exactly(queries, 10)
    assert recall_of(index.search(queries, 10, many.width), truth) == many.recall


def test_an_index_that_never_finds_enough_is_refused(tmp_path: Path) -> None:
    built(tmp_path, np.random.default_rng(0).normal(size=(3000, 64)), "ivf_pq", part=3000)
    with pytest.raises(DataError, match=r"of the 10 nearest vectors, and 100\.0% are asked for") as caught:
        width_for(VectorIndex.open(tmp_path), clustered(40, 64), 10, 1.0)
    assert "select.min_recall" in caught.value.fix


def test_where_all_are_compared_all_are_found(tmp_path: Path) -> None:
    built(tmp_path, clustered(50))
    assert width_for(VectorIndex.open(tmp_path), clustered(5), 3, 1.0).recall == 1
