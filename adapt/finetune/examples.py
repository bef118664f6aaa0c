"""Loads a prepared task for fine-tuning: truncates examples, packs them into batches, and scores predictions.

On CPUs, oneDNN compiles a kernel for every new shape of matrices. This takes 0.4 to 0.8 ms, longer than multiplying
small matrices, and batches of 16 examples have new lengths in every step. So sequences are padded to a multiple of 64
tokens, and attention is computed for groups of 4 examples, padded to a multiple of 16 tokens.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.finetune.metrics import THRESHOLD, metric_of, predictions
from adapt.model.packing.packed import Bucket, Documents, Layout, Packed, sent
from adapt.support.errors import DataError
from adapt.task.prepare_task import IGNORED, SPLITS, Facts, Split


@dataclass(frozen=True)
class ExampleBatch:
    """A batch of examples on a device. A *unit* gets one prediction: an example or, for `tokens`, a labelled token."""

    packed: Packed
    """The N tokens of the examples, with padding tokens at the end."""
    segments: Tensor
    """For each token, 0 if the token belongs to the first text of a pair, and 1 if to the second: int64 [1, N]."""
    targets: Tensor
    """The true classes of the U units, in order: int64 [U]; for `multi_label` float32 [U, classes] of 0 and 1."""
    places: Tensor | None
    """For `tokens`, the index of each unit's token in the sequence: int64 [U]. None for other kinds of tasks."""


@dataclass(frozen=True)
class Examples:
    """The E examples of a split, which have N tokens together."""

    tokens: np.ndarray
    """The token ids of all examples, concatenated: int64 [N]."""
    segments: np.ndarray
    """For each token, 0 if the token belongs to the first text of a pair, and 1 if to the second: int64 [N]."""
    ends: np.ndarray
    """The index of the first token of each example, followed by N: int64 [E + 1]."""
    targets: np.ndarray
    """The true classes of the examples: int64 [E]; for `multi_label` float32 [E, classes]; for `tokens` int64 [N]."""
    by_token: bool
    """Whether the task is of kind `tokens`. Each labelled token is then a unit with its own prediction."""
    kept: list[np.ndarray]
    """For each example, the indices of its tokens that remain after truncation."""
    truncated: int
    """Number of truncated examples in the split."""

    @classmethod
    def of(cls, split: Split, facts: Facts, max_length: int, closing: Collection[int]) -> "Examples":
        """Truncates the examples of a split and concatenates them.

        Args:
            split: a split of the prepared task.
            facts: kind and classes of the task.
            max_length: maximum length of an example [tokens].
            closing: ids of the special tokens that end a text. They remain when the text before them is truncated.
        """
        kept = [keep(tokens, max_length, closing) for tokens in split.tokens]
        lengths = [len(places) for places in kept]
        truncated = sum(length < len(tokens) for length, tokens in zip(lengths, split.tokens, strict=True))
        tokens, segments = _joined(split.tokens, kept), _joined(split.segments, kept)
        targets = _targets(split, facts, kept)
        return cls(tokens, segments, np.cumsum([0, *lengths]), targets, facts.kind == "tokens", kept, truncated)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def units(self) -> np.ndarray:
        """Number of predictions (units) per example, int64 [E]: 1, or for `tokens` the number of labelled tokens."""
        if not self.by_token:
            return np.ones(len(self), np.int64)
        labelled = np.concatenate(([0], (self.targets != IGNORED).cumsum()))
        return np.asarray(labelled[self.ends[1:]] - labelled[self.ends[:-1]])

    def batch(self, chosen: np.ndarray, device: torch.device) -> ExampleBatch:
        """Returns a batch of the examples at the indices `chosen`, in this order, followed by a document of padding."""
        begins = self.ends[chosen]
        lengths = self.ends[chosen + 1] - begins
        cumulative = np.concatenate(([0], lengths.cumsum()))
        positions = np.arange(cumulative[-1]) - cumulative[:-1].repeat(lengths)
        index = positions + begins.repeat(lengths)
        filling = -len(index) % SEQUENCE
        ends = np.append(cumulative, len(index) + filling) if filling else cumulative

        def to_device(values: np.ndarray) -> Tensor:
            return sent(torch.from_numpy(values), device)

        def filled(values: np.ndarray) -> Tensor:
            return to_device(np.pad(values, (0, filling)))[None]

        documents = Grouped(torch.from_numpy(ends.astype(np.int32)), max(int(lengths.max()), filling), device)
        tokens = np.pad(
            self.tokens[index], (0, filling), "edge"
        )  # the padding repeats the last token, because `TrainedWords` may have no row for other ids
        packed = Packed(to_device(tokens)[None], filled(positions), documents)
        segments = filled(self.segments[index])
        if not self.by_token:
            return ExampleBatch(packed, segments, to_device(self.targets[chosen]), None)
        places = np.flatnonzero(self.targets[index] != IGNORED)
        return ExampleBatch(packed, segments, to_device(self.targets[index][places]), to_device(places))


def keep(tokens: np.ndarray, max_length: int, closing: Collection[int]) -> np.ndarray:
    """Returns the indices of the tokens that remain after truncation.

    Texts are truncated at their ends. In a pair, the longer text is truncated first, because the shorter text may be a
    question or an aspect. Special tokens that end a text remain.

    Args:
        tokens: token ids of an example, which has one text or a pair of texts, [T].
        max_length: maximum number of tokens that remain.
        closing: ids of the special tokens that end a text.

    Returns:
        int64 [min(T, max_length)], ascending.
    """
    if len(tokens) <= max_length:
        return np.arange(len(tokens))
    closes = np.isin(tokens, list(closing))
    border = _border(closes)
    first, second = border, len(tokens) - border
    room = min(first, max(max_length - second, max_length - max_length // 2))
    parts = [_start_and_end(closes[:border], room), border + _start_and_end(closes[border:], max_length - room)]
    return np.concatenate(parts)


def _border(closes: np.ndarray) -> int:
    """Returns the index at which the second text of a pair begins; the number of tokens if there is only one text."""
    ends = np.flatnonzero(closes[:-1] & ~closes[1:]) + 1
    after_text = [int(end) for end in ends if not closes[:end].all()]
    return after_text[0] if after_text else len(closes)


def _start_and_end(closes: np.ndarray, room: int) -> np.ndarray:
    if room >= len(closes):
        return np.arange(len(closes))
    ordinary = np.flatnonzero(~closes)
    ending = min(len(closes) - 1 - int(ordinary[-1]) if len(ordinary) else len(closes), room)
    return np.concatenate((np.arange(room - ending), np.arange(len(closes) - ending, len(closes))))


def _joined(values: list[np.ndarray], kept: list[np.ndarray]) -> np.ndarray:
    parts = [uncut[places] for uncut, places in zip(values, kept, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def _targets(split: Split, facts: Facts, kept: list[np.ndarray]) -> np.ndarray:
    labels: list[list[int]] = split.labels  # type: ignore[assignment]
    if facts.kind == "tokens":
        return _joined([np.array(of_words) for of_words in labels], kept)
    if facts.kind == "multi_label":
        targets = np.zeros((len(labels), len(facts.labels)), np.float32)
        for row, holding in zip(targets, labels, strict=True):
            row[holding] = 1.0
        return targets
    return np.array(split.labels, np.int64)


DIGITS = 6
"""Number of decimal places of probabilities in written files."""


@dataclass(frozen=True)
class Problem:
    """A task for fine-tuning: its name, classes and metric, its splits, and their examples, truncated for a model."""

    facts: Facts
    splits: dict[str, Split]
    examples: dict[str, Examples]

    @classmethod
    def load(cls, folder: Path, max_length: int, closing: Collection[int]) -> "Problem":
        """Reads a prepared task.

        Args:
            folder: folder of stage `task`.
            max_length: maximum length of an example [tokens].
            closing: ids of the special tokens that end a text.

        Raises:
            DataError: a split is empty, or no word of a split has a token.
        """
        facts = Facts.load(folder)
        splits = {name: Split.load(folder, name) for name in SPLITS}
        for name, split in splits.items():
            if not len(split):
                raise DataError(
                    f"task {facts.name} has no {name} examples", f"set task.{name} to files that contain examples"
                )
        examples = {name: Examples.of(split, facts, max_length, closing) for name, split in splits.items()}
        for name, of_split in examples.items():
            if not of_split.units.any():
                raise DataError(
                    f"task {facts.name}: no word of the {name} examples fits in {max_length} tokens",
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
        """Returns the test score of a classifier that always predicts the majority class."""
        answer = np.zeros((int(self.examples["test"].units.sum()), len(self.facts.labels)), np.float32)
        answer[:, self.majority] = 1.0
        return self.score("test", answer)

    def score(self, name: str, probabilities: np.ndarray) -> float:
        """Returns the score of a split in the task's metric.

        Args:
            name: name of the split.
            probabilities: class probabilities of its U examples (for `tokens`: labelled tokens), [U, classes].
        """
        return float(metric_of(self.facts, self.splits[name].labels, self.predicted(name, probabilities)))

    def predicted(self, name: str, probabilities: np.ndarray) -> Any:
        """Returns the predicted classes in the form of the split's labels. See `score` for the arguments."""
        return predictions(self.facts, self.by_example(name, probabilities))

    def by_example(self, name: str, probabilities: np.ndarray) -> Any:
        """Returns the probabilities of each example: [E, classes], or for `tokens` a list of [tokens, classes].

        Truncated tokens get the majority class, which is usually O (no entity). Truncated entities count as missed.
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
        """Returns whether the same class is predicted for all examples (for `tokens`: labelled tokens) of a split."""
        answers = probabilities >= THRESHOLD if self.facts.kind == "multi_label" else probabilities.argmax(-1)[:, None]
        return len(np.unique(answers, axis=0)) == 1

    def lines(self, name: str, probabilities: np.ndarray) -> list[dict[str, Any]]:
        """Returns one object per example: id, label, predicted, probabilities, leaked.

        For `tokens`, label, predicted and probabilities are lists over the words of the example.
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


SEQUENCE = 64
"""The length of a batch's packed sequence is padded to a multiple of this number [tokens]."""
GROUP = 4
"""Number of documents for which attention is computed together."""
LENGTH = 16
"""The length of a group's documents is padded to a multiple of this number [tokens]."""


class Grouped(Documents):
    """Documents whose attention is computed in small groups of similar lengths."""

    @cached_property
    def layout(self) -> Layout:
        """Where each document is computed: groups of documents of similar lengths, short documents first."""
        ends = self.known.numpy().astype(np.int64)
        begins, lengths = ends[:-1], np.diff(ends)
        order = np.argsort(lengths, kind="stable")
        buckets, taken, real = [], [], []
        for first in range(0, len(order), GROUP):
            members = order[first : first + GROUP, None]
            longest = -(-int(lengths[members[-1, 0]]) // LENGTH) * LENGTH
            places = np.arange(longest)
            inside = places < lengths[members]
            buckets.append(Bucket(len(members), longest, sent(torch.from_numpy(inside), self.device)))
            taken.append(np.where(inside, begins[members] + places, 0).ravel())
            real.append(inside.ravel())
        tokens, occupied = np.concatenate(taken), np.concatenate(real)
        back = np.empty(ends[-1], np.int64)
        back[tokens[occupied]] = np.flatnonzero(occupied)
        filling = np.flatnonzero(~occupied)
        on_device = [sent(torch.from_numpy(indices), self.device) for indices in (tokens, back, filling)]
        return Layout(buckets, *on_device)


PASS_TOKENS = 8192
"""Maximum number of tokens in a forward pass, unless a single example is longer."""


@torch.inference_mode()
def in_passes(function: Callable[[ExampleBatch], Tensor], examples: Examples, device: torch.device) -> Tensor:
    """Applies a function to all examples in batches, and returns its values per unit, [U, ...], on the CPU.

    A unit gets one prediction: an example or, for `tokens`, a labelled token.

    Args:
        function: maps a batch to values of its units, [units, ...].
        examples: the examples of a split. Values are returned in their order.
        device: the device to compute on.
    """
    units = examples.units
    begins = np.cumsum(units) - units
    parts, places = [], []
    for chosen in _passes(np.diff(examples.ends)):
        parts.append(function(examples.batch(chosen, device)).cpu())
        inside = np.arange(units[chosen].sum()) - (np.cumsum(units[chosen]) - units[chosen]).repeat(units[chosen])
        places.append(inside + begins[chosen].repeat(units[chosen]))
    values = torch.cat(parts)
    ordered = torch.empty_like(values)
    ordered[torch.from_numpy(np.concatenate(places))] = values
    return ordered


def _passes(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yields, for each forward pass, the indices of its examples. Short examples come first."""
    order = np.argsort(lengths, kind="stable")
    sums = np.cumsum(lengths[order])
    begin = 0
    while begin < len(order):
        before = sums[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, before + PASS_TOKENS, side="right")))
        yield order[begin:end]
        begin = end
