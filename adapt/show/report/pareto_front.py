"""Finds the Pareto front and its knee (the best compromise) among models with two losses, and draws the front."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from matplotlib.axes import Axes

from adapt.show.drawing import INK

FEWEST = 3
"""Minimum number of models on a front for which a knee is computed."""
Point = tuple[float, float]
"""Two losses of a model. Lower losses are better."""


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Returns the indices of the Pareto-optimal points, sorted by the first loss.

    A point is Pareto-optimal if no other point is better in one loss without being worse in the other. If points are
    equal, only the first of them is returned.
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (*points[place], place)):
        if not front or points[place][1] < points[front[-1]][1]:
            front.append(place)
    return front


def knee(front: Sequence[Point]) -> int | None:
    """Returns the index of the point that is farthest below the line between the ends of a front.

    If no point is below the line, the result is None. For the comparison, each loss is divided by the difference
    between its values at the two ends of the front.

    Args:
        front: points of the front, sorted by the first loss. The second loss falls from point to point.
    """
    if len(front) < FEWEST:
        return None
    (left, top), (right, bottom) = front[0], front[-1]
    sums = [(x - left) / (right - left) + (y - bottom) / (top - bottom) for x, y in front]
    best = min(range(len(front)), key=sums.__getitem__)
    return best if sums[best] < 1 else None


class HasLosses(Protocol):
    """A model with two losses."""

    @property
    def point(self) -> Point:
        """The two losses."""


M = TypeVar("M", bound=HasLosses)


def front_of(models: Sequence[M]) -> tuple[list[M], M | None]:
    """Returns the Pareto-optimal models, sorted by the first loss, and the model at the knee or None."""
    front = [models[place] for place in pareto_front([model.point for model in models])]
    place = knee([model.point for model in front])
    return front, None if place is None else front[place]


def draw_front(axes: Axes, models: Sequence[M]) -> None:
    """Draws a line through the Pareto-optimal models and a circle around the knee."""
    front, bend = front_of(models)
    axes.plot(*zip(*(model.point for model in front), strict=True), color=INK, linewidth=1.6, zorder=1)
    if bend:
        axes.plot(*bend.point, "o", color=INK, markersize=14, fillstyle="none")
