"""Entities in labelled words, and how many were found, as conlleval (CoNLL-2000) and seqeval count them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


def entities(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities of a text: type, first word, word after the last.

    An entity of type X is B-X or I-X and all I-X that follow. So I-X begins one after O and after another type.

    Args:
        labels: O, B-X or I-X of each word.
    """
    found, start = set(), 0
    for place, (label, following) in enumerate(pairwise([*labels, "O"])):
        if following != f"I-{label[2:]}":  # the entity ends here, if there is one
            if label != "O":
                found.add((label[2:], start, place + 1))
            start = place + 1
    return found


@dataclass
class Found:
    """How many entities of each type there are, were predicted, and were both, with exact place and type."""

    true: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> "Found":
        """Counts over texts, each given by its true and its predicted labels."""
        found = cls()
        for truth, guess in pairs:
            true, predicted = entities(truth), entities(guess)
            for counter, those in ((found.true, true), (found.predicted, predicted), (found.right, true & predicted)):
                counter.update(kind for kind, _, _ in those)
        return found

    @property
    def total(self) -> dict[str, float]:
        """Precision, recall, f1 and support over all types."""
        return _scores(self.right.total(), self.predicted.total(), self.true.total())

    @property
    def by_type(self) -> dict[str, dict[str, float]]:
        """The same of each type."""
        kinds = sorted(self.true | self.predicted)
        return {kind: _scores(self.right[kind], self.predicted[kind], self.true[kind]) for kind in kinds}


def _scores(right: int, predicted: int, true: int) -> dict[str, float]:
    return {
        "precision": right / max(predicted, 1),
        "recall": right / max(true, 1),
        "f1": 2 * right / max(predicted + true, 1),
        "support": true,
    }
