"""Averaging over the last part of a training: the model that is handed on is the mean of checkpoints of a window.

The weights of the mean stand for a decay of the learning rate that the training has not taken (WSM, arXiv 2507.17634;
see `adapt.merge.merger`). Merge kind `average` makes such a mean of checkpoints that were kept; here the sum is taken
on the way, so that none need be kept, and the next domain goes on from the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, OpenFraction, PositiveInt
from adapt.merge.merger import decay_weights
from adapt.method.base import Method, Setting, TrainingEngine
from adapt.terminal.console import log

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class AverageOptions:
    """The mean over the last part of a training, in place of its end (arXiv 2507.17634)."""

    window: OpenFraction = 0.2
    """Share of the steps, at the end, over which the mean is taken."""
    points: PositiveInt = 10
    """States of the model in the window that are averaged, at equal distances; 1 is plain training."""
    decay: Literal["linear", "cosine", "sqrt"] = "linear"
    """The decay of the learning rate that their weights stand for; `linear` gives all the same."""


class WindowAverage(Method):
    """Sums up weighed states of the model on the first rank, and hands on their mean."""

    Options = AverageOptions
    kind: ClassVar[str] = "average"
    depends_on_length = True

    def __init__(self, options: AverageOptions) -> None:
        super().__init__(options)
        self.options: AverageOptions = options
        self._weights: dict[int, float] = {}
        self._sums: dict[str, Any] = {}  # on the first rank; it alone has whole weights
        self._total = 0.0

    def check(self, config: Config, model: Path) -> None:
        """Warns of a rate that falls by itself: the mean would then stand for a decay that is taken twice."""
        if config.training.schedule != "constant" and config.training.floor_fraction < 1:
            _warn_of_decay(config.training.schedule)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Chooses the steps of the window."""
        self._weights = window_weights(setting.steps, self.options)
        return model

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        """Adds the weights after a step of the window. All ranks gather them."""
        weight = self._weights.get(step + 1)
        if weight is None:
            return
        self._total += weight
        for name, value in engine.full_state().items():
            if value.is_floating_point():
                known = self._sums.get(name)
                self._sums[name] = value.mul_(weight) if known is None else known.add_(value, alpha=weight)

    def state(self) -> dict[str, Any]:
        """The sum so far."""
        return {"total": self._total, "sums": self._sums} if self._total else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The sum as it was; only the first rank needs it."""
        import torch.distributed as dist

        is_first = not dist.is_initialized() or dist.get_rank() == 0
        self._total = float(state["total"])
        self._sums = {name: each.cpu() for name, each in state["sums"].items()} if is_first else {}

    def cut_short(self, done: int) -> str:
        """Says how much of the window was reached."""
        planned = sorted(self._weights)
        reached = sum(step <= done for step in planned)
        if reached == len(planned):
            return ""
        if not reached:
            return (
                f"the window of method.kind average, which begins after step {planned[0]}, was not reached: the model"
                " is that of the last step, and no mean"
            )
        return (
            f"the mean of method.kind average is over {reached} of its {len(planned)} points, whose window was to end"
            f" after step {planned[-1]}"
        )

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
        """The mean, over as much of the window as the training came to. Whole numbers stay those of the end."""
        if not self._total:
            return state
        return {name: self._sums[name] / self._total if name in self._sums else each for name, each in state.items()}


@cache
def _warn_of_decay(schedule: str) -> None:
    """Says so once a process, however many trainings a sequence has."""
    log(
        f"warning: training.schedule {schedule} lowers the learning rate at the end, and method.kind average takes the"
        " place of such a decay: it gained where the rate was constant, and nothing where it fell"
        " (docs/science/forgetting.md); set training.schedule: constant"
    )


def window_weights(steps: int, options: AverageOptions) -> dict[int, float]:
    """The weight of the model after each of some steps, which sum to 1. A short window has fewer points.

    Args:
        steps: of the training.
        options: of the method.
    """
    first, points = max(1, steps - round(options.window * steps)), options.points
    if points == 1:
        return {steps: 1.0}
    places = sorted({first + round((steps - first) * number / (points - 1)) for number in range(points)})
    return dict(zip(places, decay_weights(options.decay, len(places)), strict=True))
