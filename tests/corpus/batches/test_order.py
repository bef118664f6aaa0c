"""Every row once an epoch, in an order that looks random and that depends on nothing but seed and epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from adapt.corpus.batches.order import permute, samples
from adapt.splitmix import mix

pytestmark = pytest.mark.heavy

SIZES = (1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 65_536, 65_537, 200_003)


def whole(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permute(np.arange(size), size, seed, epoch)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (1, 0), (0, 1), (2**63, 10_000), (-1, 3)])
def test_every_row_exactly_once(size: int, seed: int, epoch: int) -> None:
    rows = whole(size, seed, epoch)
    assert rows.dtype == np.int64
    assert np.array_equal(np.sort(rows), np.arange(size))


@given(st.integers(1, 3000), st.integers(-(2**63), 2**64), st.integers(0, 10**6), st.data())
def test_any_place_can_be_asked_first(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    assert np.array_equal(permute(places, size, seed, epoch), whole(size, seed, epoch)[places])


def test_a_place_among_no_rows_is_refused() -> None:
    """The walk to a row inside the range would never end."""
    with pytest.raises(ValueError, match="a place among 0 rows"):
        permute(np.zeros(1, np.int64), 0, 0, 0)
    assert permute(np.zeros(0, np.int64), 0, 0, 0).tolist() == []


def test_places_are_left_as_they_were() -> None:
    places = np.arange(5)
    permute(places, 5, 0, 0)
    assert places.tolist() == [0, 1, 2, 3, 4]


def test_a_corpus_of_any_size_costs_nothing() -> None:
    """10^15 rows: a table of them would not fit into any memory."""
    size = 10**15
    rows = permute(np.arange(1000), size, 0, 0)
    assert len(set(rows.tolist())) == 1000
    assert rows.min() >= 0
    assert rows.max() < size
    assert abs(rows.mean() / size - 0.5) < 4 / np.sqrt(12 * 1000)


def test_seeds_and_epochs_differ() -> None:
    orders = {whole(1000, seed, epoch).tobytes() for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    assert np.array_equal(whole(1000, 3, 4), whole(1000, 3, 4))


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_each_row_is_as_often_at_each_place(size: int) -> None:
    epochs = np.array([whole(size, seed=1, epoch=epoch) for epoch in range(2000)])
    for place in {0, 1, size // 2, size - 1}:
        assert chisquare(np.bincount(epochs[:, place], minlength=size)).pvalue > 1e-4


def test_neighbours_and_successive_epochs_are_unrelated() -> None:
    size = 20_000
    rows, later = whole(size, 0, 0), whole(size, 0, 1)
    bound = 4 / np.sqrt(size)
    assert abs(np.corrcoef(rows, np.arange(size))[0, 1]) < bound
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < bound
    assert abs(np.corrcoef(rows, later)[0, 1]) < bound
    steps = np.diff(rows) % size
    assert chisquare(np.bincount(steps * 20 // size, minlength=20)).pvalue > 1e-4
    assert (rows == later).sum() < 10  # 1 is to be expected


def test_mix_is_splitmix64() -> None:
    """The first numbers of Vigna's reference implementation for seed 0."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert mix(np.arange(1, 5, dtype=np.uint64) * golden).tolist() == expected


# Samples


@pytest.mark.parametrize(("size", "worlds"), [(12, (1, 2, 3, 4, 6, 12)), (10, (1, 2, 5))])
def test_the_ranks_of_a_step_share_its_samples(size: int, worlds: tuple[int, ...]) -> None:
    for world in worlds:
        for step in (0, 1, 50, 10**12):
            parts = [samples(step, rank, world, size) for rank in range(world)]
            assert {len(part) for part in parts} == {size // world}
            assert np.concatenate(parts).tolist() == list(range(step * size, step * size + size))
