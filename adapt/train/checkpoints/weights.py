"""Reads the weights in a training's checkpoints, for averages over a window of steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adapt.method.base import Method
from adapt.method.table import METHODS
from adapt.runner.record import Record, load_record
from adapt.support.errors import ModelError
from adapt.train.checkpoints.retain import STATE_FILE, is_whole
from adapt.train.checkpoints.seal import content_fault, digests_of

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_FILE = "state/mp_rank_00_model_states.pt"
"""File in which DeepSpeed stores the weights. At ZeRO stage 3, it does not exist, because the ranks hold parts."""
FIX = "name exported models, or checkpoints of a finished training by method plain at ZeRO stage 0 to 2"


@dataclass(frozen=True)
class CheckpointWeights:
    """The weights of a checkpoint, keyed by parameter name."""

    _tensors: Mapping[str, Tensor]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor, keyed by parameter name."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        """Returns one tensor. It is memory-mapped, so that values are read from disk on use."""
        return self._tensors[name]


def is_checkpoint(folder: Path) -> bool:
    """Returns whether a folder contains a checkpoint rather than an exported model."""
    return (folder / STATE_FILE).is_file() and not (folder / "config.json").exists()


def training_of(folder: Path) -> Record | None:
    """Loads the record of the training that wrote a checkpoint.

    Returns None if the training is not finished, or if the checkpoint is outside of the training's folder.
    """
    return load_record(folder.resolve().parents[2])


def checkpoint_files(folder: Path) -> list[Path]:
    """Returns the files that determine the weights of a checkpoint: its state and DeepSpeed's file of weights.

    Raises:
        ModelError: the checkpoint is incomplete or its weights are divided over ranks. Or its training is not
            finished, or has a method that converts the weights to a model only at the end.
    """
    if not is_whole(folder):
        raise ModelError(f"the checkpoint {folder} is cut short", "name another step's checkpoint")
    stage = json.loads((folder / STATE_FILE).read_text(encoding="utf-8")).get("zero_stage")
    if stage == 3 or not (folder / WEIGHTS_FILE).is_file():
        raise ModelError(f"the checkpoint {folder} has its weights divided over ranks (ZeRO stage {stage})", FIX)
    record = training_of(folder)
    if record is None:
        raise ModelError(f"the checkpoint {folder} is of no finished training", FIX)
    method = METHODS.load(record.what["method"]["kind"])
    if method.merge is not Method.merge:
        raise ModelError(
            f"the checkpoint {folder} is of method {method.kind}, whose weights become a model only at the end", FIX
        )
    return [folder / STATE_FILE, folder / WEIGHTS_FILE]


@contextmanager
def checkpoint_weights(folder: Path) -> Iterator[CheckpointWeights]:
    """Opens the weights of a checkpoint.

    Raises:
        ModelError: as in `checkpoint_files`, or a file is damaged or has changed since it was written.
    """
    state, file = checkpoint_files(folder)
    sealed = digests_of(folder)
    read = {name: sealed[name] for name in (state.name, WEIGHTS_FILE) if name in sealed}
    if fault := content_fault(folder, read):
        raise ModelError(f"the checkpoint {folder} is damaged: {fault}", "name another step's checkpoint")
    yield weights_in_file(file)


def weights_in_file(file: Path) -> CheckpointWeights:
    """Opens the weights in one of DeepSpeed's files. Only tensors and plain values are loaded, so no code can run.

    Raises:
        ModelError: the file cannot be read.
    """
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises different kinds of exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{file} cannot be read: {reason}", FIX) from error
    return CheckpointWeights({name: value for name, value in content["module"].items() if torch.is_tensor(value)})
