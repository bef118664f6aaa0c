"""Writes weights one tensor at a time, into files of the form that a given safetensors file has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from adapt.runner.files import file_aside


@contextmanager
def formed_like(source: Path, target: Path) -> Iterator[BinaryIO]:
    """A file that is written aside and has the header of another: the same names, types, shapes and places.

    Args:
        source: a safetensors file.
        target: the new one; its tensors are to be written in the order in which they lie in the source.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with file_aside(target) as aside, aside.open("wb") as file:
        with source.open("rb") as known:
            length = known.read(8)
            file.write(length + known.read(int.from_bytes(length, "little")))
        yield file


def write_tensor(file: BinaryIO, tensor: Tensor) -> None:
    """The numbers of a tensor, as safetensors has them: little end first, without gaps."""
    numbers: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    file.write(memoryview(numbers))
