"""DER++ (Buzzega et al. 2020, arXiv 2004.07211) replays past rows, and penalizes changes of their hidden states.

Past rows are drawn from a reservoir. They add two terms to a step's loss: beta times the objective's loss, and alpha
times the mean squared difference between a row's current last hidden states and its states when it was first seen.
(The paper stores logits instead of states. With logits of a whole vocabulary, a reservoir would hold few rows.) Both
terms are means over the predictions of all replayed rows of the step. Replayed rows pass through the model together
with the step's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, NonNegativeFloat, OpenFraction, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting, TrainingEngine
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.derpp.reservoir import Rehearsal
    from adapt.model.size import ModelSize
    from adapt.objective.objective import Corrupted, Objective


@dataclass(frozen=True)
class DerppOptions:
    """Options of DER++, which replays a bounded sample of past rows and their earlier states (arXiv 2004.07211).

    The defaults of alpha and beta are those of the authors' code (aimagelab/mammoth) for Split CIFAR-10 with a buffer
    of 200 images. For other image sets that code uses alpha 0.1 to 1 and beta 0.5 to 1. It compares logits instead of
    states, and replays as many examples per term as a step has. The smaller default of `fraction` saves time; no paper
    has tested it.
    """

    buffer_mib: PositiveInt = 64
    """Maximum size of the sample and its states, on every worker's device [MiB]."""
    fraction: OpenFraction = 0.25
    """Number of replayed rows in a step, divided by the number of the step's own rows. Replayed rows are additional."""
    alpha: NonNegativeFloat = 0.1
    """Weight of the mean squared difference between current and earlier states of replayed rows in a step's loss."""
    beta: NonNegativeFloat = 0.5
    """Weight of the objective on replayed rows in a step's loss."""


class Derpp(Method):
    """Replays rows of a reservoir, which fills during training."""

    Options = DerppOptions
    kind: ClassVar[str] = "derpp"
    scores_in_blocks = "choose another method.kind"
    options: DerppOptions
    rehearsal: Rehearsal
    """Stores the reservoir and replays its rows. `prepare_model` sets this object. All ranks store the same rows."""

    def check(self, config: Config, model: Path) -> None:
        training = config.training
        lengths = {phase.sequence_length or training.sequence_length for phase in training.phases}
        if training.length_ramp or len(lengths) > 1:
            field = "training.length_ramp" if training.length_ramp else "sequence_length in training.phases"
            raise ConfigError(
                f"{field} changes the length of the rows, but method.kind derpp replays earlier rows together with new"
                " ones, so all rows need the same length",
                f"leave out {field}, or choose another method.kind",
            )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        from adapt.method.derpp.reservoir import Rehearsal

        self.rehearsal = Rehearsal(self.options, setting, model, self.scores_in_blocks)
        return model

    def begin(self, engine: TrainingEngine) -> None:
        self.rehearsal.fills = True

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        return self.rehearsal.losses(model, parts, step)

    def report(self) -> dict[str, float]:
        return {"kept_rows": float(len(self.rehearsal.reservoir.rows))}

    def state(self) -> dict[str, Any]:
        return self.rehearsal.reservoir.tensors()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rehearsal.load(state)

    def carry(self, folder: Path) -> None:
        self.rehearsal.save(folder)

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        return Added(trained=self.options.fraction)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        return AddedMemory(held=float(self.options.buffer_mib * 2**20))
