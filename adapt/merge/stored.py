"""Weights of a checkpoint in safetensors, read one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor

from adapt.errors import ModelError
from adapt.model.locate import weight_files
from adapt.model.size import read_header

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
