"""An index on several actors."""

from pathlib import Path

import numpy as np
import pytest

from adapt.errors import DataError
from adapt.index.search import VectorIndex
from adapt.index.shards import ShardedIndex
from tests.index.made import built, clustered, ids_for


def test_actors_find_what_one_process_finds(tmp_path: Path, ray_cluster: None) -> None:
    built(tmp_path, clustered(1200), "ivf")
    queries = clustered(30, seed=1)
    index, sharded = VectorIndex.open(tmp_path), ShardedIndex.start(tmp_path, 2, "toy", cpus=0.5)
    assert len(sharded.actors) == 2
    only = ids_for(clustered(1200))[::5]
    narrowed = VectorIndex.open(tmp_path, only=only)
    for whole, found in (
        (index.search(queries, 9), sharded.search(queries, 9)),
        (narrowed.search(queries, 9), ShardedIndex.start(tmp_path, 2, only=only, cpus=0.5).search(queries, 9)),
        (index.search_exactly(queries, 9), sharded.search_exactly(queries, 9)),
    ):
        np.testing.assert_array_equal(found[0], whole[0])
        np.testing.assert_array_equal(found[1], whole[1])
    with pytest.raises(DataError, match=r"shape \[30, 3\]"):
        sharded.search(queries[:, :3], 9)
    with pytest.raises(DataError, match="1201 neighbours"):
        sharded.search(queries, 1201)
