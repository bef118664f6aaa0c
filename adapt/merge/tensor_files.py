"""Reads and writes the weights of a checkpoint in safetensors, one tensor at a time.

A new file has the same tensors, in the same order and types, as an existing safetensors file.
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
"""Data types whose tensors are merged."""
WHOLE = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
"""Data types whose tensors are copied from the base."""


class Weights(Protocol):
    """Gives access to the tensors of a model by name. The tensors are in a file or in memory."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""

    def read(self, name: str) -> Tensor:
        """Returns a tensor on the CPU, in its stored data type."""


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a model folder."""

    headers: Mapping[Path, Mapping[str, Mapping[str, Any]]]
    """For each file, the names of its tensors in the order of the file, with data type and shape."""
    _opened: Mapping[str, Any]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: tuple(form["shape"]) for header in self.headers.values() for name, form in header.items()}

    def read(self, name: str) -> Tensor:
        """Returns one tensor. The tensor is memory-mapped, so its values are read from disk when they are used."""
        tensor: Tensor = self._opened[name].get_tensor(name)
        return tensor


@contextmanager
def stored_weights(folder: Path) -> Iterator[StoredWeights]:
    """Opens the weights of a model folder, and closes them at the end of the block.

    Raises:
        ModelError: a file is broken, or a tensor has a type that cannot be merged.
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
"""Alignment of headers: the length of a header is a multiple of this number [bytes]."""


@contextmanager
def formed_like(source: Path, target: Path, shapes: Shapes) -> Iterator[BinaryIO]:
    """Creates a safetensors file with the tensor names, types and order of another file, and writes its header.

    The file is written under a temporary name, and renamed when the block ends.

    Args:
        source: an existing safetensors file.
        target: the new file. The caller writes its tensors in the order of the source.
        shapes: shapes of the new file's tensors. If they equal the shapes in the source, the header is identical.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with source.open("rb") as known:
        header = _reshaped(known.read(int.from_bytes(known.read(8), "little")), shapes)
    with file_aside(target) as aside, aside.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        yield file


def _reshaped(header: bytes, shapes: Shapes) -> bytes:
    """Returns a header with new shapes and the byte offsets that follow from them."""
    content = json.loads(header)
    forms = sorted((form["data_offsets"][0], name, form) for name, form in content.items() if name != METADATA)
    if all(tuple(form["shape"]) == shapes[name] for _, name, form in forms):
        return header
    offset = 0
    for _, name, form in forms:
        size = size_of(form, shapes[name])
        form |= {"shape": shapes[name], "data_offsets": (offset, offset + size)}
        offset += size
    written = json.dumps(content, separators=(",", ":")).encode()
    return written + b" " * (-len(written) % ALIGNED)


def size_of(form: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Returns the size in bytes that a stored tensor would have with another shape.

    Args:
        form: the tensor's entry in the header.
        shape: the other shape.
    """
    begin, end = form["data_offsets"]
    elements = prod(form["shape"])
    return (int(end) - int(begin)) // elements * prod(shape) if elements else 0


def write_index(source: Path, target: Path, grown: int) -> None:
    """Writes the index file of a merged model that has several weight files.

    Args:
        source: the index file of the base.
        target: the new index file.
        grown: size of the merged model minus size of the base, in bytes.

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
    """Writes the values of a tensor in the format of safetensors: little-endian, without gaps."""
    numbers: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    file.write(memoryview(numbers))
