"""The layers of a model, and their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from adapt.model.layers.families import Pattern, pattern_of


@dataclass(frozen=True)
class Layer:
    """One layer's modules."""

    name: str
    """The layer's name in the model; the names of its parameters begin with it."""
    module: nn.Module
    pattern: Pattern

    def part(self, name: str) -> Any:
        """The module of the layer that has this name."""
        return self.module.get_submodule(name)


def layers_of(model: Any) -> list[Layer]:
    """The layers of a model, in order.

    Raises:
        ModelError: its architecture is not known.
    """
    pattern = pattern_of(model.config.model_type)
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    modules = base.get_submodule(pattern.layers)
    return [Layer(f"{prefix}{pattern.layers}.{number}", module, pattern) for number, module in enumerate(modules)]


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer's weight is [inputs, outputs], as GPT-2's is."""
    return isinstance(module, Conv1D)


def outputs(module: Any) -> int:
    """Neurons that a linear layer makes."""
    return int(module.weight.shape[1 if is_transposed(module) else 0])


def inputs(module: Any) -> int:
    """Neurons that a linear layer reads."""
    return int(module.weight.shape[0 if is_transposed(module) else 1])
