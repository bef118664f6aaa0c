"""Reads and writes the weights of a checkpoint in safetensors, one tensor at a time.

New files have the same form as a given safetensors file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from adapt.merge.tensor_matching import Shapes
from adapt.model.locate import read_json, weight_files
from adapt.model.size import read_header
from adapt.runner.files import file_aside, link_or_copy, write_atomically
from adapt.support.errors import ModelError

FLOATS = {"F64", "F32", "F16", "BF16"}
"""Types of weights that are merged."""
WHOLE = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
"""Types that are kept as the base has them."""


class Weights(Protocol):
    """The tensors of a model, by their names."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each."""

    def read(self, name: str) -> Tensor:
        """One of them, on the CPU, in the type that it is stored in."""


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a model folder."""

    headers: Mapping[Path, Mapping[str, Mapping[str, Any]]]
    """For each file its tensors, as they follow each other, with type and shape."""
    _opened: Mapping[str, Any]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: tuple(form["shape"]) for header in self.headers.values() for name, form in header.items()}

    def read(self, name: str) -> Tensor:
        """One tensor; it is read from disk as it is used."""
        tensor: Tensor = self._opened[name].get_tensor(name)
        return tensor


@contextmanager
def stored_weights(folder: Path) -> Iterator[StoredWeights]:
    """Opens the weights of a model folder.

    Raises:
        ModelError: a file is broken, or a type is one that cannot be merged.
    """
    headers: dict[Path, dict[str, Any]] = {}
    opened: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in weight_files(folder):
            if file.suffix != ".safetensors":
                continue
            header = sorted(read_header(file).items(), key=lambda item: int(item[1]["data_offsets"][0]))
            for name, form in header:
                if form["dtype"] not in FLOATS | WHOLE:
                    raise ModelError(
                        f"{name} in {file} is of type {form['dtype']}, which cannot be merged",
                        "merge the model as it was before it was quantized",
                    )
            headers[file] = dict(header)
            handle = stack.enter_context(safe_open(file, framework="pt"))
            opened |= dict.fromkeys(headers[file], handle)
        yield StoredWeights(headers, opened)


METADATA = "__metadata__"
ALIGNED = 8
"""The length of a header is a multiple of this many bytes."""


@contextmanager
def formed_like(source: Path, target: Path, shapes: Shapes) -> Iterator[BinaryIO]:
    """A file that is written aside and has the header of another: the same names, types, and order.

    Args:
        source: a safetensors file.
        target: the new one; its tensors are to be written in the order in which they lie in the source.
        shapes: of its tensors. Where all are those of the source, the header is the same to the byte.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with source.open("rb") as known:
        header = _reshaped(known.read(int.from_bytes(known.read(8), "little")), shapes)
    with file_aside(target) as aside, aside.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        yield file


def _reshaped(header: bytes, shapes: Shapes) -> bytes:
    """A header with other shapes, and the places that follow from them."""
    content = json.loads(header)
    forms = sorted((form["data_offsets"][0], name, form) for name, form in content.items() if name != METADATA)
    if all(tuple(form["shape"]) == shapes[name] for _, name, form in forms):
        return header
    place = 0
    for _, name, form in forms:
        size = size_of(form, shapes[name])
        form |= {"shape": shapes[name], "data_offsets": (place, place + size)}
        place += size
    written = json.dumps(content, separators=(",", ":")).encode()
    return written + b" " * (-len(written) % ALIGNED)


def size_of(form: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of another shape in the same type.

    Args:
        form: what a header says of the tensor that is there.
        shape: the other one.
    """
    begin, end = form["data_offsets"]
    elements = prod(form["shape"])
    return (int(end) - int(begin)) // elements * prod(shape) if elements else 0


def write_index(source: Path, target: Path, grown: int) -> None:
    """Writes the index of a model in several files.

    Args:
        source: the base's.
        target: the new one.
        grown: bytes that the new model has more.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    if not grown:
        link_or_copy(source, target)
        return
    content = read_json(source)
    if "total_size" in (metadata := content.get("metadata") or {}):
        metadata["total_size"] += grown
    write_atomically(target, json.dumps(content, indent=2))


def write_tensor(file: BinaryIO, tensor: Tensor) -> None:
    """The numbers of a tensor, as safetensors has them: little end first, without gaps."""
    numbers: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    file.write(memoryview(numbers))
