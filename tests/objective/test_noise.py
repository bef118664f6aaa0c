"""Numbers by address: the stated construction, uniform in every direction, the same in any company."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from adapt.objective.noise import uniform

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
INT64 = st.integers(-(2**63), 2**63 - 1)


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def reference(seed: int, stream: int, epoch: int, row: int, position: int) -> float:
    """The construction in Python's own integers: a SplitMix64 generator for each row of each epoch of each stream."""
    state = (seed + stream * GOLDEN) & MASK
    for number in (epoch, row):
        state = (mix(state) + number * GOLDEN) & MASK
    state = (mix(state) + (position + 1) * GOLDEN) & MASK
    return (mix(state) >> 11) / 2**53


def draw(seed: int, stream: int, epochs: list[int], rows: list[int], length: int) -> np.ndarray:
    return uniform(seed, stream, torch.tensor(epochs), torch.tensor(rows), length).numpy()


def test_reference_is_splitmix64() -> None:
    """The first numbers of Vigna's implementation for seed 0."""
    assert [mix(n * GOLDEN & MASK) for n in (1, 2, 3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(
    st.integers(-(2**70), 2**70),
    st.integers(0, 5),
    st.lists(st.tuples(INT64, INT64), min_size=1, max_size=4),
    st.integers(1, 20),
)
def test_equals_the_reference(seed: int, stream: int, addresses: list[tuple[int, int]], length: int) -> None:
    epochs, rows = ([pair[i] for pair in addresses] for i in (0, 1))
    expected = [[reference(seed, stream, *pair, position) for position in range(length)] for pair in addresses]
    values = draw(seed, stream, epochs, rows, length)
    assert values.dtype == np.float64
    assert values.tolist() == expected


def test_independent_of_company_and_length() -> None:
    epochs, rows = [0, 3, 0, 7, 3], [5, 5, 10**12, 0, 6]
    together = draw(1, 2, epochs, rows, 100)
    for place, (epoch, row) in enumerate(zip(epochs, rows, strict=True)):
        assert np.array_equal(draw(1, 2, [epoch], [row], 100)[0], together[place])
        assert np.array_equal(draw(1, 2, [9, epoch], [9, row], 17)[1], together[place, :17])


def test_every_part_of_the_address_counts() -> None:
    base = (0, 0, 0, 0)
    addresses = {base} | {tuple(step if i == j else 0 for j in range(4)) for i in range(4) for step in (1, 2, 1000)}
    drawn = [draw(seed, stream, [epoch], [row], 8) for seed, stream, epoch, row in sorted(addresses)]
    assert len({values.tobytes() for values in drawn}) == 13
    assert not np.array_equal(draw(0, 0, [1], [2], 8), draw(0, 0, [2], [1], 8))
    assert len(set(np.concatenate(drawn).ravel().tolist())) == 13 * 8


N = 20_000
DIRECTIONS = {
    "positions": lambda: draw(3, 0, [1], [4], N)[0],
    "rows": lambda: draw(3, 0, [1] * N, list(range(N)), 3)[:, 2],
    "far rows": lambda: draw(3, 0, [1] * N, [row * 2**20 for row in range(N)], 1)[:, 0],
    "epochs": lambda: draw(3, 0, list(range(N)), [4] * N, 3)[:, 2],
    "seeds": lambda: np.array([draw(seed, 0, [1], [4], 1)[0, 0] for seed in range(2000)]),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_uniform_in_every_direction(direction: str) -> None:
    values = DIRECTIONS[direction]()
    assert values.min() >= 0
    assert values.max() < 1
    assert kstest(values, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4 / np.sqrt(len(values))


def test_streams_are_unrelated() -> None:
    values = np.array([draw(3, stream, [0] * 100, list(range(100)), 200).ravel() for stream in range(3)])
    assert np.abs(np.corrcoef(values) - np.eye(3)).max() < 4 / np.sqrt(N)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_same_on_a_gpu() -> None:
    epochs, rows = torch.arange(50) % 3, torch.arange(50) * 10**9
    assert torch.equal(uniform(7, 1, epochs.cuda(), rows.cuda(), 64).cpu(), uniform(7, 1, epochs, rows, 64))
