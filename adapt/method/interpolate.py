"""Interpolates between an earlier model and the trained model after each domain.

Every floating-point weight becomes (1 - share) w_earlier + share w_trained (WiSE-FT, arXiv 2109.01903; LM-Cocktail,
arXiv 2311.13534). Training itself is plain. `job: merge` with `merge.kind: interpolate` computes several interpolated
models from one finished training. This method computes one interpolated model, from which the next domain starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Fraction
from adapt.method.base import Method, Setting
from adapt.support.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class InterpolateOptions:
    """Options of the interpolation with an earlier model after each domain (arXiv 2109.01903)."""

    share: Fraction = 0.5
    """Share of the trained model in every weight; 1 is plain training, 0 learns nothing."""
    towards: Literal["before", "base"] = "before"
    """The other model: the model `before` this domain, or the `base` model, from which the first domain started."""


class Interpolated(Method):
    """Mixes the trained weights with those of an earlier model, for export."""

    Options = InterpolateOptions
    kind: ClassVar[str] = "interpolate"

    def __init__(self, options: InterpolateOptions) -> None:
        super().__init__(options)
        self.options: InterpolateOptions = options
        self._setting = Setting()
        self.exports_trained = options.share == 1

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Stores the training's setting, and checks before the training that the base model has the same shapes.

        Raises:
            ModelError: the base model has another vocabulary or architecture.
        """
        self._setting = setting
        if self.options.share < 1 and self.options.towards == "base" and setting.base != setting.anchor:
            self._other(model.state_dict())
        return model

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the interpolated weights. Integer buffers are those of the trained model."""
        share = self.options.share
        return state if share == 1 or not state else between(self._other(state), state, share)

    def _other(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the weights of the model that option `towards` chooses. Checks their names and shapes."""
        setting = self._setting
        folder = setting.anchor if self.options.towards == "before" else setting.base
        other = weights_of_model(setting, folder)
        for name, weight in state.items():
            if name not in other or other[name].shape != weight.shape:
                raise ModelError(
                    f"{folder} has no {name} of the trained model's shape {list(weight.shape)} to interpolate with",
                    "set interpolate.towards to before, since vocabulary or layers are not those of the base any more",
                )
        return other


def weights_of_model(setting: Setting, folder: Path) -> dict[str, Any]:
    """Loads another model and returns its weights, keyed by name."""
    assert setting.load
    weights: dict[str, Any] = setting.load(folder).state_dict()
    return weights


def between(other: Mapping[str, Any], state: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Returns (1 - share) of another model's weights plus `share` of the trained weights.

    Integer tensors are those of the trained model.

    Args:
        other: the other model's weights, with the same names and shapes.
        state: the trained weights.
        share: share of the trained weights, from 0 to 1.
    """
    return {
        name: other[name].lerp(weight, share) if weight.is_floating_point() else weight
        for name, weight in state.items()
    }
