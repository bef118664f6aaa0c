"""Scores of classes that were predicted, from counts, as scikit-learn defines them: to import it takes over a second."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ClassCounts:
    """How often each class is right, predicted and true: int64 [C] each."""

    right: np.ndarray
    predicted: np.ndarray
    true: np.ndarray
    accuracy: float
    """Share of examples of which all classes are right, and none is missing."""

    @classmethod
    def of(cls, truth: np.ndarray, guess: np.ndarray) -> "ClassCounts":
        """From which classes each example has, and which were predicted for it: bool [examples, C] both."""
        right = np.count_nonzero(truth & guess, axis=0)
        accuracy = float((truth == guess).all(1).mean())
        return cls(right, np.count_nonzero(guess, axis=0), np.count_nonzero(truth, axis=0), accuracy)

    @property
    def f1(self) -> np.ndarray:
        """2 right / (predicted + true) of each class; 0 where it never comes."""
        return _shares(2 * self.right, self.predicted + self.true)

    def macro_f1(self, occurring: bool) -> float:
        """The mean of F1 over the classes.

        Args:
            occurring: only over those that are true or predicted somewhere.
        """
        f1 = self.f1[self.predicted + self.true > 0] if occurring else self.f1
        return float(f1.mean())

    @property
    def micro_f1(self) -> float:
        """F1 of all decisions together; 0 where there is no class at all."""
        return float(_shares(2 * self.right.sum(), self.predicted.sum() + self.true.sum()))

    def by_class(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """Precision, recall, F1 and the number of true ones (support), by the name of the class."""
        columns = (_shares(self.right, self.predicted), _shares(self.right, self.true), self.f1, self.true)
        scores = ("precision", "recall", "f1", "support")
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {name: dict(zip(scores, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; 0 where whole is 0."""
    return np.asarray(np.where(whole > 0, part / np.maximum(whole, 1), 0.0))
