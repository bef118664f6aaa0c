"""The texts with the highest scores, in one pass over a pool of unknown size."""

import heapq
from collections.abc import Iterable
from itertools import tee

from adapt.select.base import Selection


def highest(
    selection: Selection, pool: Iterable[str], target: Iterable[str], count: int
) -> list[tuple[int, str, float]]:
    """Those that a selection takes of a pool. Of equal scores the later text's is the higher.

    Args:
        selection: gives the scores.
        pool: texts.
        target: what the tasks' texts are like.
        count: texts to take; all where there are fewer.

    Returns:
        Place in the pool, text and score of each, in the pool's order.
    """
    texts, read = tee(pool)
    scored = zip(selection.scores(read, target), texts, strict=False)  # the score is drawn first, and needs the text
    drawn = ((score, place, text) for place, (score, text) in enumerate(scored))
    return sorted((place, text, score) for score, place, text in heapq.nlargest(count, drawn))
