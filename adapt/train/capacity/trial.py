"""A pass on the real device with made-up rows, to see whether a micro-batch that should fit does."""

import gc
from collections.abc import Callable, Iterable

import numpy as np
import torch

from adapt.method.base import Method
from adapt.method.gather import without_others
from adapt.objective.base import Batch, Objective
from adapt.train.precision import Precision


def largest_that_runs(run: Callable[[int], None], sizes: Iterable[int]) -> int:
    """The first of some sizes at which the device does not run out of memory; the last if it does at all."""
    size = 1
    for size in sizes:
        try:
            run(size)
            return size
        except torch.OutOfMemoryError:
            gc.collect()  # frees what the error's stack holds
    return size


@without_others()  # a rank whose memory runs out must not leave others waiting
def trial_pass(
    model: torch.nn.Module,
    objective: Objective,
    method: Method,
    rows: int,
    sequence_length: int,
    precision: Precision,
    reserved: int = 0,
) -> None:
    """Forward and backward over full rows of one document each, which take the most memory. Leaves nothing behind.

    Args:
        model: on its device, not yet wrapped by an engine.
        objective: gives the loss.
        method: adds to it.
        rows: in the pass.
        sequence_length: of the rows [tokens].
        precision: of the pass.
        reserved: memory that the engine will take besides [bytes].

    Raises:
        torch.OutOfMemoryError: it does not fit.
    """
    device = next(model.parameters()).device
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    reservation = torch.empty(reserved, dtype=torch.uint8, device=device)
    try:
        corrupted = objective.corrupt(_batch(rows, sequence_length, objective.columns())).bound_for(device)
        passes = method.losses(model, [corrupted], objective, 0, max(1, len(corrupted.targets)))
        with torch.autocast(device.type, dtype, enabled=precision != "fp32"):
            loss, extra = next(passes)
        (loss if extra is None else loss + extra).backward()
        next(passes, None)
    finally:
        method.report()  # so that it counts anew when training begins
        model.zero_grad(set_to_none=True)
        del reservation
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _batch(rows: int, length: int, marks: tuple[str, ...]) -> Batch:
    starts = np.zeros((rows, length), bool)
    starts[:, 0] = True
    columns = {
        "tokens": np.full((rows, length), 10),  # any tokens will do
        "lengths": np.full(rows, length),
        "epochs": np.zeros(rows, np.int64),
        "rows": np.arange(rows),
        "starts": starts,
        **{name: np.ones((rows, length), bool) for name in marks},
    }
    return Batch.of(columns)
