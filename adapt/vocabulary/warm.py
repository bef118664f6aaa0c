"""A warm-up in which new tokens alone learn to be predicted, and to be read, by the objective of pre-training."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adapt.objective.base import Batch, Objective
from adapt.vocabulary.only_rows import OnlyRows

BATCH = 16
"""Rows of a step."""
LONGEST = 128
"""Tokens of a row, at most."""


@dataclass(frozen=True)
class Warmed:
    """Mean loss of the first and the last tenth of the steps [nats a predicted token]."""

    first: float
    last: float
    steps: int


def warm_up(
    model: Any,
    objective: Objective,
    documents: Iterable[np.ndarray],
    new: Sequence[int],
    steps: int,
    learning_rate: float,
    length: int,
    device: torch.device,
) -> Warmed:
    """Trains the rows of new tokens, in place. All else of the model stays, bit for bit.

    Args:
        model: a language model (`adapt.model.load.load_model`).
        objective: what is predicted.
        documents: tokens of each, with special tokens.
        new: ids of the new tokens.
        steps: at most; fewer if the text ends before.
        learning_rate: of AdamW.
        length: of rows.
        device: to compute on.
    """
    model.to(device)
    rows, losses = OnlyRows(model, new, learning_rate), []
    for _, batch in zip(range(steps), batches_in_turn(documents, min(length, LONGEST)), strict=False):
        corrupted = objective.corrupt(batch).bound_for(device)
        loss = objective.loss(model, corrupted) / max(len(corrupted.targets), 1)
        rows.step(loss)
        losses.append(float(loss.detach()))
    tenth = max(1, len(losses) // 10)
    return Warmed(_mean(losses[:tenth]), _mean(losses[-tenth:]), len(losses))


def batches_in_turn(documents: Iterable[np.ndarray], length: int) -> Iterator[Batch]:
    """Documents one after another, cut into rows and these into batches; what does not fill a batch is left."""
    size, held = BATCH * length, [np.zeros(0, np.int64)]
    starts, number = [np.zeros(0, bool)], 0
    for tokens in documents:
        held.append(tokens.astype(np.int64))
        starts.append(np.arange(len(tokens)) == 0)
        while sum(map(len, held)) >= size:
            stream, begins = np.concatenate(held), np.concatenate(starts)
            yield _batch(stream[:size].reshape(BATCH, length), begins[:size].reshape(BATCH, length), number)
            held, starts, number = [stream[size:]], [begins[size:]], number + BATCH


def _batch(tokens: np.ndarray, starts: np.ndarray, number: int) -> Batch:
    starts = starts.copy()
    starts[:, 0] = True
    return Batch(
        tokens=torch.from_numpy(tokens.copy()),
        lengths=torch.full((len(tokens),), tokens.shape[1]),
        epochs=torch.zeros(len(tokens), dtype=torch.int64),
        rows=torch.arange(number, number + len(tokens)),
        starts=torch.from_numpy(starts),
    )


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / max(len(losses), 1)
