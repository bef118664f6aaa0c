"""Entities in labelled words, as conlleval (CoNLL-2000) and seqeval read them."""

from collections.abc import Sequence
from itertools import pairwise


def spans(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities of a text: type, first word, word after the last.

    An entity of type X is B-X or I-X and all I-X that follow. So I-X begins one after O and after another type.

    Args:
        labels: O, B-X or I-X of each word.
    """
    entities, start = set(), 0
    for number, (label, following) in enumerate(pairwise([*labels, "O"])):
        if following != f"I-{label[2:]}":  # the entity ends here, if there is one
            if label != "O":
                entities.add((label[2:], start, number + 1))
            start = number + 1
    return entities
