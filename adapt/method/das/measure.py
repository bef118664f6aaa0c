"""How much a loss depends on every unit: the mean size of its gradients at the units' gates (arXiv 2302.03241, 4.1).

A gate is 1 and never trained. Gradients are taken of gates alone, group of rows by group: each group's gradient is that
of its mean loss, and starts from nothing, so that groups neither cancel out nor count twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from adapt.method.das.tokens import TokenGradients
from adapt.model.layers.units import Gates, Kind, ones
from adapt.model.packing.packed import sent
from adapt.objective.base import Batch, Corrupted


class Judged(Protocol):
    """What units may matter for: an objective, or `adapt.method.das.views.Disagreement`."""

    def corrupt(self, batch: Batch) -> Corrupted:
        """Rows as the model sees them, and where it is judged."""

    def loss(self, model: torch.nn.Module, corrupted: Corrupted) -> Tensor:
        """Summed over where it is judged."""


@dataclass(frozen=True)
class MeasureSettings:
    """How gradients are taken."""

    granularity: Literal["batch", "example"] = "batch"
    """A group is all rows of a batch, or a single row."""
    dropout_seed: int | None = None
    """Dropout is drawn from (seed, number of the batch); None is evaluation mode."""
    embeddings: Literal["free", "gradient", "frequency"] = "free"
    """Also of every token: the mean size of the gradient at its embedding, or how often it comes."""
    rows: int = 64
    """In one pass; the gradients of a larger group are summed before their size is taken."""
    dtype: torch.dtype = torch.float32
    """Precision of autocast."""


@dataclass(frozen=True)
class Sums:
    """Sizes of gradients, summed over groups, float64; on the CPU once all are."""

    units: dict[Kind, Tensor]
    """[layers, units]."""
    tokens: Tensor | None
    """[vocabulary]: sizes of gradients, or counts."""
    groups: int
    text: int
    """Tokens of text that were read."""

    def __add__(self, other: Sums) -> Sums:
        """The sums of both."""
        units = {kind: sizes + other.units[kind] for kind, sizes in self.units.items()}
        tokens = None if self.tokens is None or other.tokens is None else self.tokens + other.tokens
        return Sums(units, tokens, self.groups + other.groups, self.text + other.text)

    @property
    def means(self) -> dict[Kind, Tensor]:
        """Mean size of the gradient of each unit's gate, [layers, units]."""
        return {kind: sizes / max(self.groups, 1) for kind, sizes in self.units.items()}


def gate_sizes(
    model: Any, gates: Gates, loss: Judged, batches: Iterable[tuple[int, Batch]], settings: MeasureSettings
) -> Sums:
    """Sizes of the gradients of a loss at the gates of all units.

    Weights, their gradients, the mode of the model and the state of random numbers are afterwards what they were.

    Args:
        model: with its head, not wrapped.
        gates: of this model.
        loss: on which units are judged.
        batches: numbered. The same numbers and rows give the same sums, in any process.
        settings: how.
    """
    total: Sums | None = None  # on the device, which nothing waits for between batches
    gradients = TokenGradients(model) if settings.embeddings == "gradient" else nullcontext()
    with measuring_mode(model, settings.dropout_seed is not None), gradients as at_tokens:
        for number, batch in batches:
            if settings.dropout_seed is not None:
                torch.manual_seed(dropout_seed(settings.dropout_seed, number))
            sums = _of_batch(model, gates, loss, batch, settings, at_tokens)
            total = total + sums if total else sums
    assert total, "no batches"
    units = {kind: sizes.cpu() for kind, sizes in total.units.items()}
    return replace(total, units=units, tokens=None if total.tokens is None else total.tokens.cpu())


def _of_batch(
    model: Any, gates: Gates, loss: Judged, batch: Batch, settings: MeasureSettings, at_tokens: TokenGradients | None
) -> Sums:
    device = next(model.parameters()).device
    seen = loss.corrupt(batch).bound_for(device)
    rows = len(seen.input_ids)
    by_row = settings.granularity == "example"
    groups = torch.arange(rows) if by_row else torch.zeros(rows, dtype=torch.int64)
    number = rows if by_row else 1
    judged = torch.zeros(number).index_add(0, groups, seen.positions.sum(1).float())

    leaves = {kind: gate[:, None].repeat(1, number, 1).requires_grad_() for kind, gate in ones(model).items()}
    sums = [torch.zeros_like(leaf) for leaf in leaves.values()]
    for part, group in zip(seen.split(settings.rows), groups.split(settings.rows), strict=True):
        owner = sent(group.repeat_interleave(part.real.sum(1)), device)
        value = _value(model, gates, loss, part, leaves, owner if by_row else None, settings.dtype)
        wanted = at_tokens.taken(owner) if at_tokens else []
        gradients = torch.autograd.grad(value, [*leaves.values(), *wanted])
        for total, gradient in zip(sums, gradients, strict=False):  # what follows is of tokens
            total.add_(gradient)
        if at_tokens:
            at_tokens.add(gradients[len(sums) :])

    share = sent(judged.clamp(min=1), device)
    units = {kind: (total / share[:, None]).abs().sum(1).double() for kind, total in zip(leaves, sums, strict=True)}
    tokens = at_tokens.sizes(share) if at_tokens else None
    if settings.embeddings == "frequency":
        vocabulary = len(model.get_input_embeddings().weight)
        tokens = batch.tokens[batch.real].bincount(minlength=vocabulary).double()
    return Sums(units, tokens, int((judged > 0).sum()), int(batch.lengths.sum()))


def _value(
    model: Any,
    gates: Gates,
    loss: Judged,
    part: Corrupted,
    leaves: dict[Kind, Tensor],
    owner: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    values = leaves if owner is not None else {kind: leaf[:, 0] for kind, leaf in leaves.items()}
    with (
        torch.autocast(part.device.type, dtype, enabled=dtype != torch.float32),
        gates.set(values, owner),
    ):
        return loss.loss(model, part)


@contextmanager
def measuring_mode(model: Any, training: bool) -> Iterator[None]:
    """Inside the block, all modules are in one mode, weights get no gradients, and random numbers are borrowed."""
    modes = [(module, module.training) for module in model.modules()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next(model.parameters()).device
    try:
        model.train(training).requires_grad_(False)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter in trained:
            parameter.requires_grad_()


def dropout_seed(seed: int, number: int) -> int:
    """By which the dropout of a batch is drawn."""
    return int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
