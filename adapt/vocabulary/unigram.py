"""New pieces of a Unigram model: each scores a little more than the best way to put it together from others."""

from collections.abc import Mapping, Sequence
from math import inf

MARGIN = 0.01
"""By how much a new piece scores above the best path of old ones [nats]: it is taken, and little else changes."""
UNKNOWN = 10.0
"""How far below the worst piece a character scores that no piece has, as in the library."""


def new_scores(scores: Mapping[str, float], pieces: Sequence[str]) -> dict[str, float]:
    """The scores of new pieces.

    Shorter ones come first, so that the best path of a longer one may go over them, and the longer one is taken still.

    Args:
        scores: of the pieces that there are [nats].
        pieces: the new ones.
    """
    known, lowest, found = dict(scores), min(scores.values(), default=0.0) - UNKNOWN, {}
    for piece in sorted(pieces, key=lambda each: (len(each), each)):
        found[piece] = known[piece] = best_path(piece, known, lowest) + MARGIN
    return found


def best_path(text: str, scores: Mapping[str, float], unknown: float) -> float:
    """The highest sum of scores of pieces that make up a text (Viterbi; Kudo 2018, arXiv 1804.10959).

    Args:
        text: to be put together.
        scores: by piece.
        unknown: of a character that is no piece.
    """
    best = [0.0] + [-inf] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            score = scores.get(text[start:end], unknown if end == start + 1 else -inf)
            best[end] = max(best[end], best[start] + score)
    return best[-1]
