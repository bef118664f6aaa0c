"""Tests that the kind of an index is chosen by the number of vectors, the memory and the number of queries."""

import pytest

from adapt.index.index_files import IndexPlan, bytes_a_vector, plan_index
from adapt.support.errors import ConfigError, DataError

GIB = 2**30


@pytest.mark.parametrize(
    ("vectors", "memory", "queries", "kind"),
    [
        (2**20, GIB, 2**30, "flat"),
        (2**20 + 1, GIB, 4000, "ivf"),
        (10_000_000, 8 * GIB, 4000, "ivf"),
        (10_000_000, 11 * GIB, 10_000_000, "hnsw"),
        (10_000_000, 8 * GIB, 10_000_000, "ivf"),
        (100_000_000, 8 * GIB, 4000, "ivf_pq"),
    ],
)
def test_the_kind_is_chosen_as_the_table_says(vectors: int, memory: int, queries: int, kind: str) -> None:
    assert plan_index(vectors, 384, memory, queries).kind == kind


def test_memory_is_as_the_table_says() -> None:
    assert [bytes_a_vector(kind, 384) for kind in ("flat", "ivf", "ivf_pq", "hnsw")] == [0, 392, 56, 768 + 280]  # type: ignore[arg-type]


def test_the_number_of_lists_is_twice_the_square_root_of_the_vectors() -> None:
    assert plan_index(1_000_000, 8, GIB, kind="ivf") == IndexPlan("ivf", 2000)


def test_an_unknown_or_unsuitable_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="no index of kind 'hnws'") as caught:
        plan_index(10, 8, GIB, kind="hnws")  # type: ignore[arg-type]
    assert "hnsw" in caught.value.fix
    with pytest.raises(DataError, match="ivf_pq needs at least 1000 vectors, and there are 10"):
        plan_index(10, 8, GIB, kind="ivf_pq")
