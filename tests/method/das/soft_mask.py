"""Provides a method that trains with the soft masks of DAS and nothing else."""

from typing import Any

from torch import Tensor

from adapt.method.base import Method, Setting
from adapt.method.das.importance import soft_mask
from adapt.model.layers import Values
from adapt.model.masked_updates import Mask, Target, computed_with


class SoftMask(Method):
    """Masks a model with `soft_mask`, and exports the weights that the masked model computes with."""

    def __init__(self, importance: Values, target: Target = "update", embedding: Tensor | None = None) -> None:
        super().__init__()
        self._given = importance, target, embedding
        self._masks: dict[str, Mask] = {}

    def prepare_model(self, model: Any, setting: Setting) -> Any:
        self._masks = soft_mask(model, *self._given)
        return model

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return computed_with(state, self._masks)
