"""The trials that no other is better than in everything."""

from collections.abc import Sequence


def nondominated(costs: Sequence[Sequence[float]]) -> list[int]:
    """Places of the points that no other is below in one cost without being above it in another.

    Of equal points the first stays.

    Args:
        costs: [points, objectives] Lower is better.
    """
    kept = []
    for place, point in enumerate(costs):
        others = [(other, number) for number, other in enumerate(costs) if number != place]
        if not any(
            _is_as_low(other, point) and (list(other) != list(point) or number < place) for other, number in others
        ):
            kept.append(place)
    return kept


def _is_as_low(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
