"""Tests that the reservoir samples rows uniformly, does not depend on ranks, and never exceeds its limit in bytes."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from adapt.method.derpp.reservoir import KeptRow, Reservoir, finite, priorities

LENGTH, WIDTH = 6, 4


def row(priority: float, name: int = 0, targets: int = 2) -> KeptRow:
    return KeptRow(
        priority,
        torch.full((LENGTH,), name, dtype=torch.int32),
        torch.ones(3, LENGTH, dtype=torch.bool),
        torch.arange(targets, dtype=torch.int32),
        torch.full((targets, WIDTH), name, dtype=torch.float16),
    )


def names(reservoir: Reservoir) -> list[int]:
    return [int(each.inputs[0]) for each in reservoir.rows]


def filled(seed: int, rows: int, budget: int, batch: int = 7) -> Reservoir:
    """Returns the reservoir after a run with `rows` rows, which are added in batches."""
    reservoir = Reservoir(budget)
    for first in range(0, rows, batch):
        count = min(batch, rows - first)
        reservoir.offer(
            [row(number, first + place) for place, number in enumerate(priorities(seed, 1, first, count).tolist())]
        )
    return reservoir


def test_every_row_of_a_run_is_equally_likely_to_be_kept() -> None:
    """Applies a chi-square test to 500 runs, each with 40 rows and room for 8."""
    kept = np.zeros(40)
    for seed in range(500):
        found = names(filled(seed, 40, 8 * row(0.5).bytes))
        assert len(found) == 8
        kept[found] += 1
    # the variance of draws without replacement is (40 - 8) / (40 - 1) of the variance that chi-square assumes
    # with 39 degrees of freedom, a statistic below 73 means that p is above .001
    assert chisquare(kept).statistic / ((40 - 8) / 39) < 73
    assert chisquare(kept).pvalue < 0.9999


def test_rows_of_several_domains_are_equally_likely_to_be_kept() -> None:
    counts = np.zeros(2)
    for seed in range(500):
        both = [*priorities(seed, 1, 0, 20).tolist(), *priorities(seed, 2, 0, 20).tolist()]
        reservoir = Reservoir(8 * row(0.5).bytes)
        reservoir.offer([row(number, place) for place, number in enumerate(both[:20])])
        reservoir.offer([row(number, place + 20) for place, number in enumerate(both[20:])])
        counts += np.bincount(np.array(names(reservoir)) // 20, minlength=2)
    assert chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_ranks_that_see_rows_make_no_difference(world: int) -> None:
    """Checks that 1 to 5 ranks give the reservoir of a single process, also if the last rank adds its rows first."""
    expected = filled(3, 60, 10 * row(0.5).bytes)
    numbers = priorities(3, 1, 0, 60).tolist()
    reservoir = Reservoir(10 * row(0.5).bytes)
    for step in range(0, 60, 15):
        ranks = [range(step + rank, step + 15, world) for rank in reversed(range(world))]
        offered = [row(numbers[place], place) for places in ranks for place in places]
        reservoir.offer([each for each in offered if each.priority < reservoir.bound])
    assert names(reservoir) == names(expected)


def test_it_stays_within_its_budget() -> None:
    """Checks that rows of different sizes never exceed the reservoir's budget [bytes].

    Rows with the lowest priority numbers stay. A dropped row is not replaced by a smaller row with a higher number.
    """
    draw = np.random.default_rng(0)
    reservoir = Reservoir(1000)
    for place in range(200):
        reservoir.offer([row(draw.random(), place, targets=int(draw.integers(1, 12)))])
        assert sum(each.bytes for each in reservoir.rows) <= 1000
        assert all(each.priority < reservoir.bound for each in reservoir.rows)
    assert [each.priority for each in reservoir.rows] == sorted(each.priority for each in reservoir.rows)
    assert 1000 - sum(each.bytes for each in reservoir.rows) < row(0.0, targets=12).bytes


def test_a_row_that_is_too_large_leaves_it_empty() -> None:
    reservoir = Reservoir(10)
    reservoir.offer([row(0.5)])
    assert reservoir.rows == []
    assert reservoir.bound == 0.5
    assert reservoir.draw(3, 1, 2) == []


def test_tensors_restore_the_reservoir() -> None:
    reservoir = filled(1, 30, 5 * row(0.5).bytes)
    other = Reservoir(5 * row(0.5).bytes)
    other.load(reservoir.tensors(), "cpu")
    assert names(other) == names(reservoir)
    assert other.bound == pytest.approx(reservoir.bound)
    for one, two in zip(reservoir.rows, other.rows, strict=True):
        assert one.priority == two.priority
        assert torch.equal(one.states, two.states)
        assert torch.equal(one.targets, two.targets)
        assert torch.equal(one.marks, two.marks)
    assert Reservoir(5).tensors() == {}


def test_draws_depend_on_their_address_and_are_uniform() -> None:
    reservoir = filled(1, 30, 10 * row(0.5).bytes)
    assert [each.priority for each in reservoir.draw(4, 1, 2)] == [each.priority for each in reservoir.draw(4, 1, 2)]
    counts = dict.fromkeys(names(reservoir), 0)
    for step in range(1000):
        drawn = reservoir.draw(3, 1, step)
        assert len({each.priority for each in drawn}) == 3
        for each in drawn:
            counts[int(each.inputs[0])] += 1
    assert chisquare(list(counts.values())).pvalue > 0.001
    assert len(reservoir.draw(100, 1, 0)) == 10


def test_priorities_are_uniform_and_depend_on_seed_domain_and_row() -> None:
    found = priorities(5, 2, 0, 5000)
    assert kstest(found, "uniform").pvalue > 0.001
    assert found[100:105].tolist() == priorities(5, 2, 100, 5).tolist()
    assert not set(found) & set(priorities(5, 3, 0, 5000)) | set(found) & set(priorities(6, 2, 0, 5000))


def test_a_restored_reservoir_keeps_and_refuses_the_same_rows() -> None:
    """Checks rows whose priority numbers are at and just above the bound. Only rows below the bound are added.

    The bound is saved in fp64. If it were rounded to fp32, some of these rows could be added.
    """
    for seed in range(20):
        before = filled(seed, 60, 8 * row(0.5).bytes)
        again = Reservoir(8 * row(0.5).bytes)
        again.load(before.tensors(), "cpu")
        assert again.bound == before.bound < 1
        assert [each.priority for each in again.rows] == [each.priority for each in before.rows]
        for reservoir in (before, again):
            reservoir.offer([row(float(np.nextafter(before.bound, 2)), 99), row(before.bound, 98)])
        assert names(again) == names(before)


def test_a_bound_without_rows_is_saved() -> None:
    """Checks a reservoir that stayed empty, because the first row had more bytes than the reservoir's limit."""
    before = Reservoir(row(0.5).bytes - 1)
    before.offer([row(0.3)])
    assert (before.rows, before.bound) == ([], 0.3)
    again = Reservoir(100 * row(0.5).bytes)
    again.load(before.tensors(), "cpu")
    assert again.bound == 0.3
    assert Reservoir(1).tensors() == {}


def test_rows_with_states_that_are_not_finite_are_left_out() -> None:
    good, empty, bad, worse = row(0.1), row(0.2, targets=0), row(0.3), row(0.4)
    bad.states[1, 2], worse.states[0, 0] = float("inf"), float("nan")
    assert finite([good, bad, empty, worse]) == [good, empty]
    assert finite([]) == []
