"""The front against brute force, and the knee by hand."""

import numpy as np
import pytest

from adapt.show.report.tradeoffs.front import knee, pareto_front


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_nothing_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = [(float(x), float(y)) for x, y in rng.integers(0, 12, size=(30, 2))]

    def is_beaten(place: int) -> bool:
        (x, y), others = points[place], [points[other] for other in range(len(points)) if other != place]
        earlier = points[:place]
        return any((a <= x and b <= y and (a, b) != (x, y)) for a, b in others) or (x, y) in earlier

    expected = {place for place in range(len(points)) if not is_beaten(place)}
    found = pareto_front(points)
    assert set(found) == expected
    assert [points[place] for place in found] == sorted(points[place] for place in found)


def test_the_knee_lies_farthest_below_the_line_between_the_ends() -> None:
    front = [(1.0, 8.0), (2.0, 3.0), (4.0, 2.0), (9.0, 1.0)]
    ends = np.array(front[0]), np.array(front[-1])
    scale = np.abs(ends[1] - ends[0])
    along = (ends[1] - ends[0]) / scale
    distances = []
    for point in front:
        away = (np.array(point) - ends[0]) / scale
        distances.append((along[1] * away[0] - along[0] * away[1]) / np.linalg.norm(along))
    assert knee(front) == int(np.argmin(distances)) or knee(front) == int(np.argmax(np.abs(distances)))
    assert knee(front) == 1


def test_losses_in_other_units_have_the_same_knee() -> None:
    front = [(1.0, 8.0), (2.0, 3.0), (4.0, 2.0), (9.0, 1.0)]
    assert knee([(100 * x + 3, y / 7 - 2) for x, y in front]) == 1


def test_two_models_or_a_front_that_bends_the_other_way_have_none() -> None:
    assert knee([(1.0, 2.0), (2.0, 1.0)]) is None
    assert knee([(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]) is None
    assert knee([(0.0, 1.0), (0.9, 0.8), (1.0, 0.0)]) is None
