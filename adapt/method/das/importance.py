"""The file that stands between domains: how important each unit is for all that a model has learnt so far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from adapt.errors import ModelError, StageError
from adapt.model.layers.pattern import layers_of
from adapt.model.layers.units import KINDS, Kind, unit_counts
from adapt.runner.files import file_aside

IMPORTANCE_FILE = "importance.safetensors"


@dataclass(frozen=True)
class Importance:
    """Importance in [0, 1], on the CPU."""

    units: dict[Kind, Tensor]
    """fp32 [layers, units] of each kind."""
    embedding: Tensor | None
    """fp32 [vocabulary], of the rows of the embeddings; None where they are free."""
    sample: Tensor
    """int64: the rows of the corpus on which it was measured last."""


def save_importance(importance: Importance, model: Any, folder: Path) -> None:
    """Writes it, with what model it is of, aside and renames it into place.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    tensors = {"sample": importance.sample, **{str(kind): layers for kind, layers in importance.units.items()}}
    if importance.embedding is not None:
        tensors["embedding"] = importance.embedding
    content = save(tensors, {"model_type": model.config.model_type, "sizes": json.dumps(_sizes(model))})
    with file_aside(folder / IMPORTANCE_FILE) as aside:
        aside.write_bytes(content)


def load_importance(folder: Path, model: Any) -> Importance:
    """Reads what `save_importance` wrote.

    Args:
        folder: of the stage that measured it.
        model: for which it is to be used; not wrapped.

    Raises:
        StageError: the file is missing or broken.
        ModelError: it is of a model of another architecture, depth, width or vocabulary.
    """
    path = folder / IMPORTANCE_FILE
    try:
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            theirs = {"model_type": about["model_type"], **json.loads(about["sizes"])}
            units: dict[Kind, Tensor] = {kind: tensors[kind] for kind in KINDS}
            importance = Importance(units, tensors.get("embedding"), tensors["sample"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StageError(f"{path} cannot be read: {error}", f"delete {folder} to measure importance again") from error
    ours = {"model_type": model.config.model_type, **_sizes(model)}
    if importance.embedding is None:
        theirs["vocabulary"] = ours["vocabulary"]  # no row of it is masked
    if theirs != ours:
        differences = ", ".join(
            f"{name} {theirs.get(name)} there and {ours[name]} here" for name in ours if theirs.get(name) != ours[name]
        )
        raise ModelError(
            f"{path} holds the importance of another model: {differences}",
            "keep to one model in a sequence of domains, or measure importance again on this one",
        )
    return importance


def joined_importance(previous: Tensor | None, new: Tensor | None) -> Tensor | None:
    """The larger importance of each token, where either is known."""
    if previous is None or new is None:
        return previous if new is None else new
    return torch.maximum(previous, new)


def _sizes(model: Any) -> dict[str, int]:
    vocabulary = len(model.get_input_embeddings().weight)
    units = {str(kind): size for kind, size in unit_counts(model).items()}
    return {"layers": len(layers_of(model)), **units, "vocabulary": vocabulary}
