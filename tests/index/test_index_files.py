"""Tests that the kind of an index is chosen by the number of vectors, the memory and the number of queries."""

import pytest

from adapt.index.index_files import bytes_a_vector, chosen_kind
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
    assert chosen_kind(vectors, 384, memory, queries) == kind


def test_memory_is_as_the_table_says() -> None:
    assert [bytes_a_vector(kind, 384) for kind in ("flat", "ivf", "ivf_pq", "hnsw")] == [0, 392, 56, 768 + 280]  # type: ignore[arg-type]


def test_an_unknown_or_unsuitable_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="no index of kind 'hnws'") as caught:
        chosen_kind(10, 8, GIB, kind="hnws")
    assert "hnsw" in caught.value.fix
    with pytest.raises(DataError, match="ivf_pq needs at least 1000 vectors, and there are 10"):
        chosen_kind(10, 8, GIB, kind="ivf_pq")
