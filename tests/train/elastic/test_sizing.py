"""Tests the number of workers that is chosen for a number of free slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.train.elastic.sizing import Patience, Sizing

PATIENCE = Patience(settle_s=5, look_s=1, looks=3)


def sizing(*worlds: int) -> Sizing:
    return Sizing(worlds, PATIENCE)


def test_it_starts_at_once_with_the_largest_number() -> None:
    assert sizing(1, 2, 4).start(9, now=100.0) == 4


def test_it_starts_with_fewer_after_the_room_stayed_the_same_for_a_while() -> None:
    size = sizing(1, 2, 4)
    assert size.start(1, now=0.0) is None
    assert size.start(3, now=4.0) is None  # the number of free slots changed, so that more may follow
    assert size.start(3, now=8.9) is None
    assert size.start(3, now=9.0) == 2  # three workers cannot divide the batch


def test_it_waits_for_the_fewest_however_long() -> None:
    size = sizing(2, 3)
    assert [size.start(1, now) for now in (0.0, 10.0, 1000.0)] == [None] * 3
    assert size.start(2, now=1001.0) is None
    assert size.start(2, now=1006.0) == 2


def test_a_second_start_waits_again() -> None:
    size = sizing(1, 2)
    assert (size.start(1, 0.0), size.start(1, 5.0)) == (None, 1)
    assert (size.start(1, 100.0), size.start(1, 105.0)) == (None, 1)


@pytest.mark.parametrize(
    ("rooms", "found"),
    [
        ([3, 3, 3], [None, None, 3]),
        ([3, 3, 1, 3, 3, 3], [None] * 5 + [3]),  # the free slots disappeared once
        # the number of free slots rose: the smallest number of the last checks counts
        ([2, 3, 3, 3], [None, None, 2, 3]),
        ([1, 1, 1, 1], [None] * 4),
        ([0, 0, 0, 0], [None] * 4),  # a healthy group does not shrink
        ([9, 9, 9], [None, None, 4]),
    ],
)
def test_it_grows_after_several_consecutive_checks_found_room(rooms: list[int], found: list[int | None]) -> None:
    size = sizing(1, 2, 3, 4)
    assert [size.grow(1, room) for room in rooms] == found


def test_a_start_resets_the_checks() -> None:
    size = sizing(1, 2)
    assert [size.grow(1, 2), size.grow(1, 2)] == [None, None]
    assert size.start(2, now=0.0) == 2
    assert size.grow(1, 2) is None


@given(st.sets(st.integers(1, 9), min_size=1), st.integers(0, 12))
def test_it_never_starts_more_than_there_is_room_for(worlds: set[int], room: int) -> None:
    size = Sizing(sorted(worlds), PATIENCE)
    size.start(room, now=0.0)
    started = size.start(room, now=50.0)
    fitting = [world for world in worlds if world <= room]
    assert started == max(fitting, default=None)
