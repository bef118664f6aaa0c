"""Fisher information of every weight, its diagonal: the mean over examples of the squared gradient of their loss.

An example is a row of the text, its loss the mean over the row's predictions (Kirkpatrick et al. 2017, arXiv
1612.00796, equation 3; with the text's own tokens for labels). Each row goes through the model by itself: gradients
that are summed before they are squared would cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adapt.errors import ModelError, StageError
from adapt.objective.base import Batch, Objective
from adapt.runner.files import file_aside

FISHER_FILE = "fisher.safetensors"


@dataclass(frozen=True)
class Squares:
    """Squared gradients, summed over examples."""

    sums: Mapping[str, Tensor]
    """fp32, of the weights' shapes, by name; tied weights once."""
    examples: int
    """Rows that had something to predict."""
    tokens: int
    """Length of the text that was read."""


def squared_gradients(
    model: Any, objective: Objective, batches: Iterable[tuple[int, Batch]], dtype: torch.dtype = torch.float32
) -> Squares:
    """The squared gradients of each row's mean loss.

    Args:
        model: with its head, in evaluation mode, not wrapped.
        objective: gives the loss.
        batches: numbered.
        dtype: precision of autocast.
    """
    weights = dict(model.named_parameters())
    device = next(iter(weights.values())).device
    sums = [torch.zeros_like(weight) for weight in weights.values()]
    examples = tokens = 0
    for _, batch in batches:
        tokens += int(batch.lengths.sum())
        for row in objective.corrupt(batch).bound_for(device).split(1):
            if not len(row.targets):
                continue
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = objective.loss(model, row) / len(row.targets)
            gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            torch._foreach_addcmul_(sums, gradients, gradients)
            examples += 1
    return Squares(dict(zip(weights, sums, strict=True)), examples, tokens)


def save_squares(squares: Squares, file: Path) -> None:
    """Writes one device's sums."""
    with file_aside(file) as aside:
        save_file({name: sums.cpu().contiguous() for name, sums in squares.sums.items()}, aside)


def merge_fisher(parts: Sequence[Path], examples: int, previous: Path | None, file: Path) -> int:
    """Makes the Fisher information of what is known so far: the mean over all domains, each counting once.

    Args:
        parts: files of `save_squares`.
        examples: of all parts.
        previous: the information of the domains before.
        file: where it is written, aside and renamed.

    Returns:
        How many domains it is the mean of.
    """
    domains, merged = 1, {}
    with ExitStack() as files:
        first, *others = (files.enter_context(safe_open(part, framework="pt")) for part in parts)
        for name in first.keys():  # noqa: SIM118
            total = first.get_tensor(name).double()
            for other in others:
                total += other.get_tensor(name)
            merged[name] = (total / max(examples, 1)).float()
    if previous:
        with safe_open(previous, framework="pt") as before:
            domains += int(before.metadata()["domains"])
            for name, fisher in merged.items():
                fisher.lerp_(before.get_tensor(name), (domains - 1) / domains)
    with file_aside(file) as aside:
        save_file(merged, aside, {"domains": str(domains)})
    return domains


def check_fisher(folder: Path, model: Any) -> None:
    """Refuses what cannot hold the weights of a model.

    Args:
        folder: of the stage that measured the information.
        model: not wrapped.

    Raises:
        StageError: the file is missing or broken.
        ModelError: it is of another model.
    """
    file = folder / FISHER_FILE
    ours = {name: list(weight.shape) for name, weight in model.named_parameters()}
    try:
        with safe_open(file, framework="pt") as opened:
            theirs = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StageError(f"{file} cannot be read: {error}", f"delete {folder} to measure it again") from error
    if names := sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)):
        example = f"{names[0]} is {theirs.get(names[0], 'not')} there and {ours.get(names[0], 'not')} here"
        raise ModelError(
            f"{file} holds the Fisher information of another model: {example}",
            "keep to one model in a sequence of domains, or measure the information again on this one",
        )
