"""A split's examples, cut to a length and laid out so that any of them are quickly joined into one packed sequence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adapt.finetune.grouped import SEQUENCE, Grouped
from adapt.model.packing.packed import Packed, sent
from adapt.task.data import IGNORED, Facts, Split


@dataclass(frozen=True)
class ExampleBatch:
    """Some examples, on a device. A *unit* is what gets one prediction: an example, or a labelled token."""

    packed: Packed
    """The N tokens of the examples, with padding tokens at the end."""
    segments: Tensor
    """For each token the text that it belongs to, 0 or 1: int64 [1, N]."""
    targets: Tensor
    """The right answers of the U units, in order: int64 [U]; for `multi_label` float32 [U, classes] of 0 and 1."""
    places: Tensor | None
    """For `tokens`, the index of each unit's token in the sequence: int64 [U]."""


@dataclass(frozen=True)
class Examples:
    """The E examples of a split, which have N tokens together."""

    tokens: np.ndarray
    """Their token ids, one example after another: int64 [N]."""
    segments: np.ndarray
    """For each token the text that it belongs to, 0 or 1: int64 [N]."""
    ends: np.ndarray
    """Where each example begins, and N at the end: int64 [E + 1]."""
    targets: np.ndarray
    """The right answers: int64 [E]; for `multi_label` float32 [E, classes]; for `tokens` int64 [N]."""
    by_token: bool
    kept: list[np.ndarray]
    """For each example, the indices of its tokens that were not cut off."""
    truncated: int
    """How many examples were cut."""

    @classmethod
    def of(cls, split: Split, facts: Facts, max_length: int, closing: Collection[int]) -> Examples:
        """Cuts the examples of a split and lays them end to end.

        Args:
            split: of the prepared task.
            facts: of the task.
            max_length: longest example [tokens].
            closing: ids of the special tokens that end a text; they stay when the text before them is cut.
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
        """How many units each example has: int64 [E]."""
        if not self.by_token:
            return np.ones(len(self), np.int64)
        labelled = np.concatenate(([0], (self.targets != IGNORED).cumsum()))
        return np.asarray(labelled[self.ends[1:]] - labelled[self.ends[:-1]])

    def batch(self, chosen: np.ndarray, device: torch.device) -> ExampleBatch:
        """A batch of the examples with these indices, in this order, filled up by one more document of padding."""
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
        tokens = np.pad(self.tokens[index], (0, filling), "edge")  # a word of the batch, which `TrainedWords` knows
        packed = Packed(to_device(tokens)[None], filled(positions), documents)
        segments = filled(self.segments[index])
        if not self.by_token:
            return ExampleBatch(packed, segments, to_device(self.targets[chosen]), None)
        places = np.flatnonzero(self.targets[index] != IGNORED)
        return ExampleBatch(packed, segments, to_device(self.targets[index][places]), to_device(places))


def keep(tokens: np.ndarray, max_length: int, closing: Collection[int]) -> np.ndarray:
    """The numbers of the tokens that stay.

    Texts are cut at their ends, of a pair the longer one first, so that an aspect or a question survives. Special
    tokens that end a text stay.

    Args:
        tokens: of an example, [T], as the tokenizer made them of one text or of a pair.
        max_length: how many may stay [tokens].
        closing: ids of those special tokens.

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
    """Where the second text begins: after the first run of closing tokens that follows an ordinary one."""
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
