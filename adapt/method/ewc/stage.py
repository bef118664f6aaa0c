"""Stage `fisher`: the Fisher information of every weight of a model, measured on some rows of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.method.ewc.options import EwcOptions
from adapt.method.measuring.sums import AddedUp, Summed, Summing, sum_up, what_of_sums
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.runner.cost import cost_of

if TYPE_CHECKING:  # torch is loaded in Ray tasks only once they have hidden the GPUs that are not theirs
    import torch

    from adapt.objective.base import Batch

MEASURED, FISHER_FILE = "Fisher information", "fisher.safetensors"


@dataclass(frozen=True, eq=False)
class MeasureFisher(Stage[Summed]):
    """How much the text that a model knows depends on each weight (arXiv 1612.00796, equation 3)."""

    kind = "fisher"

    name: str
    config: Config
    options: EwcOptions
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that it is measured on."""
    previous: Stage[Summed] | None
    """The information of the domains before, which the new one joins."""

    def what(self) -> Mapping[str, Any]:
        """The sample, what the model sees of it, and the model."""
        return what_of_sums(self.config, self.start, self.options.fisher_sequences)

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers, as a training does."""
        from adapt.train.capacity.needs import training_needs

        return training_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Summed]:
        """Measures on the cluster's devices."""
        texts = tuple(str(done[text].path) for text in self.texts)
        before = done[self.previous].path if self.previous else None
        start, wanted = self.start.made(done), self.options.fisher_sequences
        result = sum_up(Summing(self.config, start, texts, str(folder), wanted, MEASURED, squares), FISHER_FILE, before)
        return Outcome(result, cost_of(result.device_seconds, self.config.resources.price_per_device_hour))


def squares(model: Any, objective: Any, batches: Iterator[tuple[int, Batch]], dtype: torch.dtype) -> AddedUp:
    """Squared gradients, row by row."""
    from adapt.method.ewc.fisher import squared_gradients

    return squared_gradients(model, objective, batches, dtype)
