"""Defines two methods that start the next domain from a mean of models. Training itself is plain.

The methods are `interpolate` and `average`.

With `interpolate`, every floating-point weight becomes (1 - share) w_earlier + share w_trained after a domain (WiSE-FT,
arXiv 2109.01903; LM-Cocktail, arXiv 2311.13534). `job: merge` with `merge.kind: interpolate` computes several
interpolated models after training. This method computes one interpolated model, and the next domain starts from this
model.

`average` averages the model over the last steps of training, instead of taking the last weights. A weighted mean over
these steps can replace a decay of the learning rate (WSM, arXiv 2507.17634; see `adapt.merge.merger`). Merge kind
`average` averages saved checkpoints. This method adds up the weights during the training, so that no checkpoints need
to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, Fraction, OpenFraction, PositiveInt
from adapt.merge.merger import decay_weights
from adapt.method.base import Method, Setting, TrainingEngine
from adapt.support.errors import ModelError
from adapt.terminal.console import say_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class InterpolateOptions:
    """Options of the interpolation with an earlier model after each domain (arXiv 2109.01903)."""

    share: Fraction = 0.5
    """Share of the trained model in every weight; 1 is plain training, 0 learns nothing."""
    towards: Literal["before", "base"] = "before"
    """The earlier model: the model `before` this domain, or the `base` model, from which the first domain started."""


class Interpolated(Method):
    """Exports a mixture of the trained weights and the weights of an earlier model."""

    Options = InterpolateOptions
    kind: ClassVar[str] = "interpolate"

    def __init__(self, options: InterpolateOptions) -> None:
        super().__init__(options)
        self.options: InterpolateOptions = options
        self._setting = Setting()
        self.exports_trained = options.share == 1

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        self._setting = setting
        if self.options.share < 1 and self.options.towards == "base" and setting.base != setting.anchor:
            self._other(model.state_dict())
        return model

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
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
                    f"the model in {folder} cannot be interpolated with the trained model, because it has no {name} of"
                    f" shape {list(weight.shape)}",
                    "set interpolate.towards to before, because the vocabulary or layers differ from the base model's",
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


@dataclass(frozen=True)
class AverageOptions:
    """Options of averaging the model's weights over the last part of a training run (arXiv 2507.17634).

    Averaged models have equal weights, which imitates a linear decay of the learning rate.
    """

    earlier: ClassVar[Mapping[str, Any]] = {"decay": "linear"}
    window: OpenFraction = 0.2
    """Share of the steps, at the end of the training, over which the model is averaged."""
    points: PositiveInt = 10
    """Number of averaged models, which are taken after evenly spaced steps of the window. 1 is plain training."""


class WindowAverage(Method):
    """Adds up the model's weights after some of the last steps, on the first rank, and exports the mean weights."""

    Options = AverageOptions
    kind: ClassVar[str] = "average"
    exports_trained = False
    depends_on_length = True

    def __init__(self, options: AverageOptions) -> None:
        super().__init__(options)
        self.options: AverageOptions = options
        self._weights: dict[int, float] = {}
        self._sums: dict[str, Any] = {}  # filled only on the first rank, because only this rank has complete weights
        self._total = 0.0

    def check(self, config: Config, model: Path) -> None:
        if config.training.schedule != "constant" and config.training.floor_fraction < 1:
            say_once(
                f"warning: training.schedule {config.training.schedule} lowers the learning rate at the end, and"
                " method.kind average is meant to replace such a decay: in our tests averaging helped with a constant"
                " rate, and not with a falling one (docs/science/forgetting.md); set training.schedule: constant"
            )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        self._weights = window_weights(setting.steps, self.options)
        return model

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        weight = self._weights.get(step + 1)
        if weight is None:
            return
        self._total += weight
        for name, value in engine.full_state().items():
            if value.is_floating_point():
                known = self._sums.get(name)
                self._sums[name] = value.mul_(weight) if known is None else known.add_(value, alpha=weight)

    def state(self) -> dict[str, Any]:
        return {"total": self._total, "sums": self._sums} if self._total else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        import torch.distributed as dist

        is_first = not dist.is_initialized() or dist.get_rank() == 0
        self._total = float(state["total"])
        self._sums = {name: each.cpu() for name, each in state["sums"].items()} if is_first else {}

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
        """Integer buffers keep their last values. If no chosen step was reached, returns `state` unchanged."""
        if not self._total:
            return state
        return {name: self._sums[name] / self._total if name in self._sums else each for name, each in state.items()}


def window_weights(steps: int, options: AverageOptions) -> dict[int, float]:
    """Returns the steps after which the model enters the mean, and the weight of each step. The weights sum to 1.

    There are `points` steps, or fewer if the window is shorter.
    """
    first, points = max(1, steps - round(options.window * steps)), options.points
    if points == 1:
        return {steps: 1.0}
    places = sorted({first + round((steps - first) * number / (points - 1)) for number in range(points)})
    return dict(zip(places, decay_weights("linear", len(places)), strict=True))
