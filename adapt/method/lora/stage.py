"""Stage `moments`: what enters the linear layers of a model on text whose knowledge is to be kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.method.measurement import AddedUp, Summed, Summing, sum_up, what_of_sums
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import cost_of

if TYPE_CHECKING:  # torch is loaded in Ray tasks only once they have hidden the GPUs that are not theirs
    import torch

    from adapt.objective.objective import Batch

MEASURED, MOMENTS_FILE = "second moments", "moments.safetensors"


@dataclass(frozen=True, eq=False)
class MeasureMoments(Stage[Summed]):
    """Second moments of what enters linear layers (arXiv 2406.05223), the mean over domains so far."""

    kind = "moments"

    name: str
    config: Config
    sequences: int
    """Rows that are passed through the model."""
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that it is measured on."""
    previous: Stage[Summed] | None
    """The moments of the domains before, which the new ones join."""

    def what(self) -> Mapping[str, Any]:
        """The sample, what the model sees of it, and the model."""
        return what_of_sums(self.config, self.start, self.sequences)

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers, as a training does."""
        from adapt.train.capacity.device import training_needs

        return training_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Summed]:
        """Measures on the cluster's devices."""
        texts = tuple(str(done[text].path) for text in self.texts)
        before = done[self.previous].path if self.previous else None
        start, wanted = self.start.made(done), self.sequences
        result = sum_up(
            Summing(self.config, start, texts, str(folder), wanted, MEASURED, moments), MOMENTS_FILE, before
        )
        return Outcome(result, cost_of(result.device_seconds, self.config.resources.price_per_device_hour))


def moments(model: Any, objective: Any, batches: Iterator[tuple[int, Batch]], dtype: torch.dtype) -> AddedUp:
    """AddedUp of x x^T."""
    from adapt.method.lora.moments import second_moments

    return second_moments(model, objective, batches, dtype)
