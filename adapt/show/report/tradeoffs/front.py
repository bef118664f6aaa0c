"""The Pareto front of two losses, and its knee."""

from collections.abc import Sequence

FEWEST = 3
"""Models on a front that has a knee."""
Point = tuple[float, float]
"""Two losses of a model; lower is better."""


def pareto_front(points: Sequence[Point]) -> list[int]:
    """The places of those points that no other has a lower loss beside without a higher one, by the first loss.

    Of equal points the first stays.
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (*points[place], place)):
        if not front or points[place][1] < points[front[-1]][1]:
            front.append(place)
    return front


def knee(front: Sequence[Point]) -> int | None:
    """The place of the point that lies farthest below the line between the ends of a front; None if none does.

    Each loss is measured in units of its distance between the ends.

    Args:
        front: by the first loss; the second then falls.
    """
    if len(front) < FEWEST:
        return None
    (left, top), (right, bottom) = front[0], front[-1]
    sums = [(x - left) / (right - left) + (y - bottom) / (top - bottom) for x, y in front]
    best = min(range(len(front)), key=sums.__getitem__)
    return best if sums[best] < 1 else None
