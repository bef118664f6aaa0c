"""DAS (arXiv 2302.03241): what matters to past domains moves less, and what is new is set against what was known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from adapt.config import DasConfig
from adapt.method.base import Method
from adapt.method.contrast import Contrast
from adapt.method.gather import summed
from adapt.method.importance import load_importance
from adapt.method.normalize import with_floor
from adapt.method.soft_mask import SoftMask
from adapt.method.views import injected
from adapt.model.units import Gates, Values
from adapt.objective.base import Corrupted, Objective


class Das(Method):
    """Soft masks and contrast. Both are made of importance, which the stage before has measured.

    Args:
        config: of the method.
    """

    def __init__(self, config: DasConfig) -> None:
        self._config = config
        self._mask: SoftMask | None = None
        self._contrast: Contrast | None = None
        self._plasticity = 1.0
        self._counted = torch.zeros(2, dtype=torch.float64)  # contrast summed since the last report, and documents

    def prepare_model(self, model: torch.nn.Module, inputs: Mapping[str, Path]) -> None:
        """Masks and gates.

        Args:
            model: before it is compiled and wrapped.
            inputs: `importance`, a folder; without it nothing is masked, and nothing known to be told apart from.

        Raises:
            ModelError: the importance is another model's; or views are to be contrasted that nothing makes differ.
        """
        config, folder = self._config, inputs.get("importance")
        importance = load_importance(folder, model) if folder else None
        if importance and config.soft_mask != "none":
            masked = with_floor(importance.units, config.plasticity_floor)
            self._mask = SoftMask(masked, config.soft_mask, embedding=importance.embedding)
            self._mask.prepare_model(model, inputs)
            self._plasticity = plasticity(masked)
        if config.contrast_weight:
            gates, known = (Gates(model), importance.units) if importance else (None, None)
            self._contrast = Contrast(config, gates, known, injected(model, config.injected_dropout))

    def losses(
        self, model: torch.nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Adds the weight times the mean contrast over the documents of the global batch."""
        if self._contrast is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        for loss, added, each in self._contrast.losses(model, parts):
            counted = torch.stack((each.sum(), each.new_tensor(len(each))))
            self._counted = self._counted.to(each.device) + counted
            yield loss, added

    def report(self) -> dict[str, float]:
        """The mean contrast [nats] of all documents since the last report, and how much of the units' movement is left.

        All ranks call it.
        """
        report = {"plasticity": self._plasticity}
        if self._contrast:
            total, documents = summed(self._counted).tolist()
            report["contrast"] = total / max(documents, 1)
            self._counted = torch.zeros_like(self._counted)
        return report

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights without masks."""
        return self._mask.merge(state) if self._mask else state


def plasticity(importance: Values) -> float:
    """The mean of 1 - I over all units."""
    return 1 - torch.cat([each.flatten() for each in importance.values()]).mean().item()
