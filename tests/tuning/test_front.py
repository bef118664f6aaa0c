"""Trials that none is better than."""

import random

from adapt.tuning.front import nondominated


def test_a_point_that_is_beaten_in_all_is_left_out() -> None:
    assert nondominated([[1, 3], [2, 2], [3, 1], [3, 3], [2, 3]]) == [0, 1, 2]


def test_of_equal_points_the_first_stays() -> None:
    assert nondominated([[1, 1], [1, 1], [0, 2]]) == [0, 2]


def test_one_objective_leaves_its_best() -> None:
    assert nondominated([[3], [1], [2]]) == [1]


def test_every_point_is_on_the_front_or_beaten_by_one_that_is() -> None:
    draw = random.Random(1)
    points = [[draw.randrange(6) for _ in range(3)] for _ in range(60)]
    front = nondominated(points)
    beats = {
        place: [other for other in front if all(a <= b for a, b in zip(points[other], points[place], strict=True))]
        for place in range(60)
    }
    assert all(beats.values())
    assert all(beats[place] == [place] for place in front)
