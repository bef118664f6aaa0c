"""Text of the domains before, read again, and which of the domains comes next.

ELLE calls its memory adaptive: what still learns is replayed more. Here a domain is drawn in proportion to how much its
loss has fallen over the last times that it came. Domains of which that is not known yet come first, and a tenth of all
draws is even, so that a domain that has stopped falling is still looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapt.method.collectives import counted, summed
from adapt.method.measurement import text_of
from adapt.model.additions.domain_modules import choose_set, sets_of
from adapt.objective.objective import Batch, Corrupted, Objective

REPLAYS = 0x0E11E
"""Tells the draw of what is replayed from all else that is drawn by (seed, step)."""
WINDOW = 8
"""So many losses of a domain are kept; their later half is held against the earlier."""
EVEN = 0.1
"""Share of draws in which all domains are alike."""


class PastText:
    """Rows of the domains before.

    Args:
        folders: of their prepared text, by name.
        seed: of what is drawn.
    """

    def __init__(self, folders: Mapping[str, Path], seed: int = 0) -> None:
        self._seed = seed
        self._own: int | None = None  # the prompt of the domain that is learnt
        self._prompts: dict[str, int] = {}
        self._replayed: tuple[str, Tensor, int] | None = None  # of this step: domain, this rank's loss, predictions
        self._steps = 0  # that replayed, since the last report
        self._streams = {name: text_of([folder]) for name, folder in folders.items()}
        self.losses: dict[str, list[float]] = {name: [] for name in folders}
        """The last losses of each domain [nats a predicted token], the latest last."""

    def without_text(self) -> str | None:
        """A domain that has no row, if there is one."""
        return next((name for name, stream in self._streams.items() if not stream.tokens), None)

    def use_prompts(self, own: int, prompts: dict[str, int]) -> None:
        """Takes the number of the prompt of the domain that is learnt, and of others by the name of their text."""
        self._own, self._prompts = own, prompts

    def forget_steps(self) -> None:
        """Forgets what was replayed, as by a trial of the memory."""
        self._replayed, self._steps = None, 0

    def is_drawn(self, step: int, share: float) -> bool:
        """Whether a step is one of a share of steps, drawn one by one."""
        return bool(np.random.default_rng([self._seed % 2**64, step, REPLAYS]).random() < share)

    def passes(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Those of a step on as many rows of a domain before. Arguments as of `adapt.method.base.Method.losses`."""
        rows, length = sum(len(part.input_ids) for part in parts), parts[0].input_ids.shape[1]
        counts, rank = counted(rows)
        share, address = slice(rank, None, len(counts)), (self._seed ^ REPLAYS, step)
        name, batch = self.rows(sum(counts), share, length, objective.columns(), address)
        corrupted = objective.corrupt(batch).bound_for(parts[0].device)
        asked = max(sum(counted(len(corrupted.targets))[0]), 1)
        total: Any = 0.0
        with self._prompt_of(model, name):
            for part in corrupted.split(len(parts[0].input_ids)):
                loss = objective.loss(model, part)
                total = total + loss.detach()
                self._replayed = name, total, asked
                # the caller divides by the predictions of the domain's rows
                yield loss * (predictions / asked), self._idle(model)

    @contextmanager
    def _prompt_of(self, model: nn.Module, name: str) -> Iterator[None]:
        """Inside the block documents have the prompt of past text, if it has one."""
        if self._own is None:
            yield
            return
        choose_set(model, self._prompts.get(name))
        try:
            yield
        finally:
            choose_set(model, self._own)

    def _idle(self, model: Any) -> Tensor | None:
        """0, by which the domain's own prompt, which a step does not see, has a gradient: all parameters need one."""
        if self._own is None:
            return None
        (prompts,) = sets_of(model)
        prompt: Any = prompts[self._own]
        nothing: Tensor = prompt(torch.empty(0, prompt.width, device=next(model.parameters()).device)).sum()
        return 0.0 * nothing

    def note_step(self) -> None:
        """Notes the loss on what a step has replayed, if it has. All ranks call it, once they waited for the device."""
        if self._replayed:
            name, total, asked = self._replayed
            self.note(name, summed(total).item() / asked)
            self._steps += 1
        self._replayed = None

    def steps_since(self) -> int:
        """How many steps have replayed text since the last call."""
        steps, self._steps = self._steps, 0
        return steps

    def note(self, name: str, loss: float) -> None:
        """Adds a loss of a domain."""
        self.losses[name] = [*self.losses[name], loss][-WINDOW:]

    def shares(self) -> dict[str, float]:
        """With which probability each domain comes next."""
        fewest = min(map(len, self.losses.values()))
        if fewest < 2:
            new = [name for name, losses in self.losses.items() if len(losses) == fewest]
            return {name: (name in new) / len(new) for name in self.losses}
        falls = {name: max(0.0, fall_of(losses)) for name, losses in self.losses.items()}
        total, even = sum(falls.values()), 1 / len(falls)
        if not total:
            return dict.fromkeys(falls, even)
        return {name: (1 - EVEN) * fall / total + EVEN * even for name, fall in falls.items()}

    def rows(
        self, count: int, share: slice, length: int, marks: tuple[str, ...], address: tuple[int, int]
    ) -> tuple[str, Batch]:
        """Rows of a domain that is drawn, each row of it equally likely.

        Args:
            count: rows that all ranks draw together.
            share: those of this rank.
            length: of a row [tokens].
            marks: columns that the objective needs.
            address: what the draw depends on besides the losses: the seed, and the step, by which rows get masks of
                their own.
        """
        seed, step = address
        draw, shares = np.random.default_rng([seed % 2**64, step]), self.shares()
        name = str(draw.choice(list(shares), p=list(shares.values())))
        stream = self._streams[name]
        rows = draw.integers(0, stream.rows(length), count)[share]
        columns = {**stream.take(rows.tolist(), length, marks), "epochs": np.full(len(rows), step), "rows": rows}
        return name, Batch.of(columns)


def fall_of(losses: list[float]) -> float:
    """By how much the later half of two or more losses lies below the earlier."""
    half = len(losses) // 2
    return mean(losses[:half]) - mean(losses[-half:])
