"""How many of the entities in labelled words were found, as conlleval (CoNLL-2000) and seqeval count them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from adapt.statistics.spans import spans


@dataclass
class EntityCounts:
    """How many entities of each type there are, were predicted, and were both, with exact place and type."""

    true: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> "EntityCounts":
        """Counts over texts, each given by its true and its predicted labels."""
        counts = cls()
        for truth, guess in pairs:
            true, predicted = spans(truth), spans(guess)
            for counter, entities in (
                (counts.true, true),
                (counts.predicted, predicted),
                (counts.right, true & predicted),
            ):
                counter.update(kind for kind, _, _ in entities)
        return counts

    @property
    def total(self) -> dict[str, float]:
        """Precision, recall, f1 and support over all types."""
        return _scores(self.right.total(), self.predicted.total(), self.true.total())

    @property
    def by_type(self) -> dict[str, dict[str, float]]:
        """Precision, recall, f1 and support of each type."""
        kinds = sorted(self.true | self.predicted)
        return {kind: _scores(self.right[kind], self.predicted[kind], self.true[kind]) for kind in kinds}


def _scores(right: int, predicted: int, true: int) -> dict[str, float]:
    return {
        "precision": right / max(predicted, 1),
        "recall": right / max(true, 1),
        "f1": 2 * right / max(predicted + true, 1),
        "support": true,
    }
