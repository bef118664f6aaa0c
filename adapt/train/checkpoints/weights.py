"""The weights in a training's checkpoint, for averages over a window of steps."""

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
"""Where DeepSpeed keeps the weights, if each rank has all of them."""
FIX = "name exported models, or checkpoints of a finished training by method plain at ZeRO stage 0 to 2"


@dataclass(frozen=True)
class CheckpointWeights:
    """The tensors of a checkpoint, by their names."""

    _tensors: Mapping[str, Tensor]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        """One of them; it is read from disk as it is used."""
        return self._tensors[name]


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is that of a checkpoint, and not of a model."""
    return (folder / STATE_FILE).is_file() and not (folder / "config.json").exists()


def training_of(folder: Path) -> Record | None:
    """The record of the training that a checkpoint is of; None while that is not finished, or if it lies elsewhere."""
    return load_record(folder.resolve().parents[2])


def checkpoint_files(folder: Path) -> list[Path]:
    """What determines the weights of a checkpoint.

    Raises:
        ModelError: it is cut short, its weights are divided over ranks, or they are not those of an ordinary model.
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
            f"the checkpoint {folder} is of method {method.kind}, whose weights become a model at the end alone", FIX
        )
    return [folder / STATE_FILE, folder / WEIGHTS_FILE]


@contextmanager
def checkpoint_weights(folder: Path) -> Iterator[CheckpointWeights]:
    """Opens the weights of a checkpoint.

    Raises:
        ModelError: as `checkpoint_files`, or a file is broken or has changed since it was written.
    """
    state, file = checkpoint_files(folder)
    sealed = digests_of(folder)
    read = {name: sealed[name] for name in (state.name, WEIGHTS_FILE) if name in sealed}
    if fault := content_fault(folder, read):
        raise ModelError(f"the checkpoint {folder} is damaged: {fault}", "name another step's checkpoint")
    yield weights_in_file(file)


def weights_in_file(file: Path) -> CheckpointWeights:
    """The weights in a file of DeepSpeed's. Nothing but numbers is made of it: what else stands in it cannot run code.

    Raises:
        ModelError: it is broken.
    """
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many kinds, according to what is wrong
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{file} cannot be read: {reason}", FIX) from error
    return CheckpointWeights({name: value for name, value in content["module"].items() if torch.is_tensor(value)})
