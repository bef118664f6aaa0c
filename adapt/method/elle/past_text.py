"""Chooses which earlier domain to replay, and runs passes on rows of its text.

ELLE replays a domain more often while it still improves ("adaptive" memory). In this module, the probability of a
domain is in proportion to the recent fall of its loss. Domains with fewer than two recorded losses are drawn first. A
tenth of the other draws is uniform, so that the loss of a domain is still measured when it has stopped falling.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapt.corpus.token_shards import text_of
from adapt.method.collectives import counted, summed
from adapt.model.additions.domain_modules import choose_set, sets_of
from adapt.objective.objective import Batch, Corrupted, Objective

REPLAYS = 0x0E11E
"""Constant in the seeds of replay draws. It makes them independent of other draws with the same seed and step."""
WINDOW = 8
"""Maximum number of recent losses that are stored per domain."""
EVEN = 0.1
"""Share of draws in which all domains are equally likely."""


class PastText:
    """Draws rows from earlier domains and runs passes on the drawn rows.

    Args:
        folders: folders of the domains' prepared text, keyed by the text's name.
        seed: seed of all draws.
    """

    def __init__(self, folders: Mapping[str, Path], seed: int = 0) -> None:
        self._seed = seed
        self._own: int | None = None  # index of the current domain's prompt
        self._prompts: dict[str, int] = {}
        # the current step's replayed domain, loss on this rank, and number of predictions of all ranks
        self._replayed: tuple[str, Tensor, int] | None = None
        self._steps = 0  # number of steps that replayed text since the last report
        self._streams = {name: text_of([folder]) for name, folder in folders.items()}
        self.losses: dict[str, list[float]] = {name: [] for name in folders}
        """Recent losses of each domain [nats per predicted token], the newest last."""

    def without_text(self) -> str | None:
        """Returns the name of a domain without rows, or None if all domains have rows."""
        return next((name for name, stream in self._streams.items() if not stream.tokens), None)

    def use_prompts(self, own: int, prompts: dict[str, int]) -> None:
        """Sets the current domain's prompt index, and earlier domains' prompt indices, keyed by name of text."""
        self._own, self._prompts = own, prompts

    def forget_steps(self) -> None:
        """Resets the counts of replayed steps, such as after a trial of the memory use."""
        self._replayed, self._steps = None, 0

    def is_drawn(self, step: int, share: float) -> bool:
        """Returns whether a step replays text. Each step is drawn independently with probability `share`."""
        return bool(np.random.default_rng([self._seed % 2**64, step, REPLAYS]).random() < share)

    def passes(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields a step's losses on rows of an earlier domain. See `Method.losses` for arguments."""
        rows, length = sum(len(part.input_ids) for part in parts), parts[0].input_ids.shape[1]
        counts, rank = counted(rows)
        share, address = slice(rank, None, len(counts)), (self._seed ^ REPLAYS, step)
        name, batch = self.rows(sum(counts), share, length, objective.columns(), address)
        corrupted = objective.corrupt(batch).bound_for(parts[0].device)
        targets = max(sum(counted(len(corrupted.targets))[0]), 1)
        total: Any = 0.0
        with self._prompt_of(model, name):
            for part in corrupted.split(len(parts[0].input_ids)):
                loss = objective.loss(model, part)
                total = total + loss.detach()
                self._replayed = name, total, targets
                # the caller divides by the number of predictions on the domain's rows, not on the replayed rows
                yield loss * (predictions / targets), self._idle(model)

    @contextmanager
    def _prompt_of(self, model: nn.Module, name: str) -> Iterator[None]:
        """Returns a context manager that selects the earlier domain's prompt, if the domain has one."""
        if self._own is None:
            yield
            return
        choose_set(model, self._prompts.get(name))
        try:
            yield
        finally:
            choose_set(model, self._own)

    def _idle(self, model: Any) -> Tensor | None:
        """Returns 0 times the current domain's unused prompt as a loss, because all parameters need a gradient."""
        if self._own is None:
            return None
        (prompts,) = sets_of(model)
        prompt: Any = prompts[self._own]
        nothing: Tensor = prompt(torch.empty(0, prompt.width, device=next(model.parameters()).device)).sum()
        return 0.0 * nothing

    def note_step(self) -> None:
        """Records the loss on replayed rows, if the step replayed any. All ranks call this after the step."""
        if self._replayed:
            name, total, targets = self._replayed
            self.note(name, summed(total).item() / targets)
            self._steps += 1
        self._replayed = None

    def steps_since(self) -> int:
        """Returns the number of steps that replayed text since the last call."""
        steps, self._steps = self._steps, 0
        return steps

    def note(self, name: str, loss: float) -> None:
        """Appends a loss to a domain's recent losses. Leaves out a loss that is not finite (fp16 overflow)."""
        if isfinite(loss):
            self.losses[name] = [*self.losses[name], loss][-WINDOW:]

    def shares(self) -> dict[str, float]:
        """Returns the probability of each domain in the next draw."""
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
        """Draws an earlier domain, and returns its name and uniformly drawn rows.

        Args:
            count: number of rows that all ranks draw together.
            share: this rank's part of these rows.
            length: length of a row [tokens].
            marks: columns that the objective needs.
            address: seed and step of the draw. The step is also the epoch of the rows, so that the rows get new masks.
        """
        seed, step = address
        draw, shares = np.random.default_rng([seed % 2**64, step]), self.shares()
        name = str(draw.choice(list(shares), p=list(shares.values())))
        stream = self._streams[name]
        rows = draw.integers(0, stream.rows(length), count)[share]
        columns = {**stream.take(rows.tolist(), length, marks), "epochs": np.full(len(rows), step), "rows": rows}
        return name, Batch.of(columns)


def fall_of(losses: list[float]) -> float:
    """Returns the mean of the earlier half of two or more losses minus the mean of the later half."""
    half = len(losses) // 2
    return mean(losses[:half]) - mean(losses[-half:])
