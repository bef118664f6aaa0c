"""Tests searches of an index against brute force."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapt.index import vector_index
from adapt.index.exact_search import NOBODY, merge_nearest
from adapt.index.index_files import IndexFacts, Proposer
from adapt.index.sharded_index import ShardedIndex
from adapt.index.vector_index import VectorIndex, recall_of, width_for
from adapt.support.errors import DataError
from tests.index.clusters import FIRST_ID, brute_force, built, clustered, ids_for, indexed

VECTORS = clustered(1200)
QUERIES = clustered(30, seed=1)


@pytest.fixture(scope="module", params=["flat", "ivf", "ivf_pq", "hnsw"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VectorIndex:
    """Returns an index of 1200 vectors in four parts. Tests run once for each kind of index."""
    folder = tmp_path_factory.mktemp(request.param)
    built(folder, VECTORS, request.param)
    return VectorIndex.open(folder, "toy")


def test_a_wide_search_finds_the_true_neighbours(index: VectorIndex) -> None:
    """Ids and distances of all results must equal those of a search by brute force.

    For `ivf_pq`, whose codes have few bits, more than 90% of the results must be as near as the true neighbours.
    """
    truth = brute_force(VECTORS, ids_for(VECTORS), QUERIES, 12)
    distances, ids = index.search(QUERIES, 12, width=1000)
    if index.facts.kind == "ivf_pq":
        assert (distances <= truth[0][:, -1:]).mean() > 0.9
        assert (distances >= truth[0]).all()
    else:
        np.testing.assert_array_equal(ids, truth[1])
        np.testing.assert_array_equal(distances, truth[0])
    assert (distances.dtype, ids.dtype) == (np.float64, np.int64)
    np.testing.assert_array_equal(index.search_exactly(QUERIES, 12)[1], truth[1])


def test_ids_above_the_integers_of_float32_survive(index: VectorIndex) -> None:
    place = 2**24 + 1 - FIRST_ID
    assert index.search(VECTORS[place : place + 1], 1, width=1000)[1].tolist() == [[2**24 + 1]]


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_results_do_not_depend_on_the_number_of_shards(index: VectorIndex, shards: int) -> None:
    """Results must be equal for any number of shards, also if a search only visits some inverted lists."""
    whole = index.search(QUERIES, 7)
    numbers = list(range(len(index.facts.parts)))
    parts = [VectorIndex.open(index.folder, None, numbers[shard::shards]) for shard in range(shards)]
    merged = merge_nearest([part.search(QUERIES, 7) for part in reversed(parts)], 7)
    np.testing.assert_array_equal(merged[1], whole[1])
    np.testing.assert_array_equal(merged[0], whole[0])


def test_results_are_filled_up_if_lists_hold_too_few_vectors(index: VectorIndex) -> None:
    if not index.facts.lists:
        pytest.skip("it has no lists")
    distances, ids = index.search(QUERIES, 1000, width=1)
    assert ((ids == NOBODY) == np.isinf(distances)).all()
    assert (ids[:, -1] == NOBODY).any()


def test_invalid_searches_are_refused(index: VectorIndex) -> None:
    with pytest.raises(DataError, match=r"shape \[30, 15\] instead of \[n, 16\]"):
        index.search(QUERIES[:, :15], 3)
    with pytest.raises(DataError, match=r"holds vectors of the embedder toy, but the queries are vectors of another"):
        VectorIndex.open(index.folder, "another")


@pytest.mark.parametrize("share", [2, 40, 1200])
def test_a_search_can_be_limited_to_some_vectors(
    index: VectorIndex, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search compares all permitted vectors if they are few.

    If FLAT_VECTORS is 0, no number of vectors is small enough, so the search uses inverted lists and graphs.
    """
    ids = ids_for(VECTORS)
    only = np.sort(np.random.default_rng(0).choice(ids, len(ids) // share, replace=False))
    k = min(3, len(only))
    truth = brute_force(VECTORS[only - FIRST_ID], only, QUERIES, k)
    narrowed = VectorIndex.open(index.folder, only=only)
    assert narrowed.is_exact
    np.testing.assert_array_equal(narrowed.search(QUERIES, k)[1], truth[1])
    monkeypatch.setattr(vector_index, "FLAT_VECTORS", 0)
    wide = VectorIndex.open(index.folder, only=only)
    assert wide.is_exact == (index.facts.kind == "flat")
    distances, found = wide.search(QUERIES, k, width=1000)
    if index.facts.kind == "ivf_pq":
        assert np.isin(found, only).all()
    else:
        np.testing.assert_array_equal(found, truth[1])
        np.testing.assert_array_equal(distances, truth[0])


def test_a_folder_without_a_finished_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no finished index"):
        VectorIndex.open(tmp_path)
    with pytest.raises(DataError, match="there are no vectors to index"):
        indexed(tmp_path, np.zeros(0, np.int64), np.zeros((0, 4)))
    with pytest.raises(DataError, match="holds no finished index"):
        VectorIndex.open(tmp_path)


def test_the_facts_of_an_index_are_read_back(tmp_path: Path) -> None:
    facts = built(tmp_path, VECTORS, "ivf", part=500)
    assert facts == IndexFacts.load(tmp_path) == IndexFacts("toy", 16, (500, 500, 200), "ivf", 68)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 25), st.integers(1, 20))
def test_exact_search_equals_brute_force_for_any_parts_and_ties(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, part: int, k: int
) -> None:
    """Vectors consist of small integers, so many vectors are equal or have the same distance from a query."""
    draw = np.random.default_rng(seed)
    vectors, queries = draw.integers(-1, 2, (count, 3)), draw.integers(-1, 2, (4, 3))
    ids = draw.permutation(count).astype(np.int64) + 2**24
    folder = tmp_path_factory.mktemp("index")
    indexed(folder, ids, vectors.astype(np.float32), part=part)
    found = VectorIndex.open(folder).search(queries.astype(np.float32), min(k, count))
    truth = brute_force(vectors.astype(float), ids, queries.astype(float), min(k, count))
    np.testing.assert_array_equal(found[0], truth[0])
    np.testing.assert_array_equal(found[1], truth[1])


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


def test_recall_is_the_share_of_true_neighbours_and_counts_ties() -> None:
    ids = np.zeros((2, 2), np.int64)
    truth = np.array([[0.1, 0.2], [0.3, 0.3]]), ids
    assert recall_of(truth, truth) == 1
    assert recall_of((np.array([[0.1, 0.4], [0.3, 0.3]]), ids), truth) == 0.75
    assert recall_of((np.array([[0.2, np.inf], [0.4, 0.5]]), ids), truth) == 0.25


def test_the_width_grows_until_the_recall_is_reached(tmp_path: Path) -> None:
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


def test_an_index_that_cannot_reach_the_recall_is_refused(tmp_path: Path) -> None:
    built(tmp_path, np.random.default_rng(0).normal(size=(3000, 64)), "ivf_pq", part=3000)
    with pytest.raises(DataError, match=r"of the 10 nearest vectors, but 100\.0% are required") as caught:
        width_for(VectorIndex.open(tmp_path), clustered(40, 64), 10, 1.0)
    assert "select.min_recall" in caught.value.fix


def test_a_flat_index_has_a_recall_of_1(tmp_path: Path) -> None:
    built(tmp_path, clustered(50))
    assert width_for(VectorIndex.open(tmp_path), clustered(5), 3, 1.0).recall == 1


def test_a_gpu_is_asked_for_at_most_2048_candidates(tmp_path: Path) -> None:
    """faiss finds at most 2,048 neighbours on a GPU, so longer searches must use the index in main memory."""
    vectors = clustered(3000)
    facts = built(tmp_path, vectors, "ivf", part=10**6)
    asked: list[int] = []

    class OnGpu:
        nprobe = 0

        def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
            asked.append(count)
            return np.zeros((len(queries), count)), np.zeros((len(queries), count), np.int64)

    proposer = replace(Proposer.open(facts, tmp_path, 0), on_gpu=OnGpu())
    queries = vectors[:2].astype(np.float16)
    assert proposer.candidates(queries, 10, 8).shape == (2, 28)
    assert proposer.candidates(queries, 2400, facts.lists).shape == (2, 3000)
    assert proposer.candidates(queries, 10, 5000).shape == (2, 28)
    assert asked == [28]
