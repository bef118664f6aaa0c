"""A prepared task as fine-tuning sees it, and answers to it in the form in which they are scored and written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adapt.errors import DataError
from adapt.finetune.examples import Examples
from adapt.finetune.scores import THRESHOLD, metric_of, predictions
from adapt.task.data import IGNORED, SPLITS, Facts, Split

DIGITS = 6
"""Probabilities are written with this many digits."""


@dataclass(frozen=True)
class Problem:
    """A task as fine-tuning uses it: its facts, its splits, and the splits cut and joined for a model."""

    facts: Facts
    splits: dict[str, Split]
    examples: dict[str, Examples]

    @classmethod
    def load(cls, folder: Path, max_length: int, closing: Collection[int]) -> Problem:
        """Reads a prepared task.

        Args:
            folder: of stage `task`.
            max_length: longest example [tokens].
            closing: ids of the special tokens that end a text.

        Raises:
            DataError: a split is empty, or no word of it has a token.
        """
        facts = Facts.load(folder)
        splits = {name: Split.load(folder, name) for name in SPLITS}
        for name, split in splits.items():
            if not len(split):
                raise DataError(f"task {facts.name} has no {name} examples", f"set task.{name} to files with some")
        examples = {name: Examples.of(split, facts, max_length, closing) for name, split in splits.items()}
        for name, of_split in examples.items():
            if not of_split.units.any():
                raise DataError(
                    f"task {facts.name}: no word of the {name} examples fits into {max_length} tokens",
                    "raise finetune.max_length, or check the words of the examples",
                )
        return cls(facts, splits, examples)

    @cached_property
    def majority(self) -> int:
        """The most frequent class of the train split."""
        targets = self.examples["train"].targets
        if self.facts.kind == "multi_label":
            return int(targets.sum(0).argmax())
        return int(np.bincount(targets[targets != IGNORED], minlength=len(self.facts.labels)).argmax())

    def majority_score(self) -> float:
        """The test score of always answering the majority class."""
        answer = np.zeros((int(self.examples["test"].units.sum()), len(self.facts.labels)), np.float32)
        answer[:, self.majority] = 1.0
        return self.score("test", answer)

    def score(self, name: str, probabilities: np.ndarray) -> float:
        """Scores a split with the task's metric, from the units' probabilities, [U, classes]."""
        return float(metric_of(self.facts, self.splits[name].labels, self.predicted(name, probabilities)))

    def predicted(self, name: str, probabilities: np.ndarray) -> Any:
        """Turns class indices into the form of the split's labels."""
        return predictions(self.facts, self.by_example(name, probabilities))

    def by_example(self, name: str, probabilities: np.ndarray) -> Any:
        """The probabilities of each example: [E, classes], or for `tokens` a list of [tokens, classes].

        What was cut off has the majority class, which is O as a rule: it counts as not found.
        """
        if self.facts.kind != "tokens":
            return probabilities
        by_label, examples, begin = [], self.examples[name], 0
        for number, labels in enumerate(self.splits[name].labels):
            rows = np.zeros((len(labels), len(self.facts.labels)), probabilities.dtype)  # type: ignore[arg-type]
            rows[:, self.majority] = 1.0
            kept = examples.kept[number]
            units = kept[np.array(labels)[kept] != IGNORED]
            rows[units] = probabilities[begin : begin + len(units)]
            by_label.append(rows)
            begin += len(units)
        return by_label

    def degenerate(self, name: str, probabilities: np.ndarray) -> bool:
        """Whether every unit got the same answer."""
        answers = probabilities >= THRESHOLD if self.facts.kind == "multi_label" else probabilities.argmax(-1)[:, None]
        return len(np.unique(answers, axis=0)) == 1

    def lines(self, name: str, probabilities: np.ndarray) -> list[dict[str, Any]]:
        """One object for each example: id, label, predicted, probabilities, leaked.

        For `tokens` it lists the example's words.
        """
        split, predicted = self.splits[name], self.predicted(name, probabilities)
        lines = []
        for number, rows in enumerate(self.by_example(name, probabilities)):
            label, answer, rounded = split.labels[number], predicted[number], rows.astype(float).round(DIGITS)
            if self.facts.kind == "tokens":
                words = np.flatnonzero(np.array(label) != IGNORED)
                label, answer = np.array(label)[words].tolist(), np.array(answer)[words].tolist()
                rounded = rounded[words]
            line = {"id": split.ids[number], "label": label, "predicted": answer}
            lines.append(line | {"probabilities": rounded.tolist(), "leaked": split.leaked[number]})
        return lines
