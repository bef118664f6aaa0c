"""Read a model with additions: the architecture is built, they are attached, and every weight gets its value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from adapt.errors import ModelError
from adapt.model.additions.table import attach_additions
from adapt.model.locate import weight_files


def read_with_additions(
    kind: Any, folder: Path, config: PreTrainedConfig, trust_remote_code: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model in fp32 in evaluation mode, and what was missing or of another shape.

    Args:
        kind: the class, or one of transformers' auto classes. One without a head leaves out the head's weights.
        folder: of the model, its files checked.
        config: the model's.
        trust_remote_code: run code that comes with the checkpoint.

    Raises:
        ModelError: an addition is not known, or there are weights that belong to nothing.
    """
    model: PreTrainedModel = kind.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    attach_additions(model, config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    stored = _named_as(model, _stored(folder))
    if unknown := sorted(stored.keys() - shapes.keys()):
        raise ModelError(
            f"{folder} has weights that belong to none of its additions: {unknown[0]}", "copy or make the model again"
        )
    report = {
        "missing_keys": shapes.keys() - stored.keys() - model.all_tied_weights_keys.keys(),
        "mismatched_keys": [
            (name, tensor.shape, shapes[name]) for name, tensor in stored.items() if tensor.shape != shapes[name]
        ],
    }
    if not report["mismatched_keys"]:
        model.load_state_dict(stored, strict=False)
        model.tie_weights()
    return model.eval(), report


def _stored(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder."""
    files = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _named_as(model: PreTrainedModel, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names that a model without its head has for its weights, where it has none."""
    prefix = f"{model.base_model_prefix}."
    if model.base_model is not model:
        return stored
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
