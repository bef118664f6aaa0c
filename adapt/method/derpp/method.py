"""DER++ (Buzzega et al. 2020, arXiv 2004.07211): past rows come again, and should be seen as they were seen then.

To the loss of a step are added beta times the objective's loss on some rows of a reservoir, and alpha times the mean
squared difference of their last hidden states from those that were stored with them when they were first seen. (With
logits of a whole vocabulary, which the paper stores, a reservoir would hold few rows.) Both are means over the
predictions of all replayed rows of the step. These pass the model together with the step's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import NonNegativeFloat, OpenFraction, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting, TrainingEngine

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.derpp.reservoir import Rehearsal
    from adapt.model.size import ModelSize
    from adapt.objective.objective import Corrupted, Objective


@dataclass(frozen=True)
class DerppOptions:
    """DER++: a bounded sample of past rows is replayed, with the states that they had (arXiv 2004.07211).

    alpha and beta are those of the authors' code (aimagelab/mammoth) for Split CIFAR-10 with a buffer of 200; for other
    image sets it has 0.1 to 1 and 0.5 to 1, of logits and not of states. It replays as many rows as a step has, for
    each term; a quarter is a choice made here, for cost, which no paper has.
    """

    buffer_mib: PositiveInt = 64
    """Size of the sample with its states, on every worker's device [MiB]."""
    fraction: OpenFraction = 0.25
    """Replayed rows in a step, as a share of the rows of a step, which come beside them."""
    alpha: NonNegativeFloat = 0.1
    """Weight in the loss of the mean squared difference from the states that replayed rows had."""
    beta: NonNegativeFloat = 0.5
    """Weight in the loss of the objective's loss on replayed rows."""


class Derpp(Method):
    """Replays rows of a reservoir, which is filled while training."""

    Options = DerppOptions
    kind: ClassVar[str] = "derpp"
    options: DerppOptions
    rehearsal: Rehearsal
    """What `prepare_model` begins; on all ranks it keeps the same."""

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Takes what was kept of the domains before."""
        from adapt.method.derpp.reservoir import Rehearsal

        self.rehearsal = Rehearsal(self.options, setting)
        return model

    def begin(self, engine: TrainingEngine) -> None:
        """From now on rows are kept."""
        self.rehearsal.fills = True

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """One pass for each micro-batch, with its share of what is replayed."""
        return self.rehearsal.losses(model, parts, step)

    def report(self) -> dict[str, float]:
        """How many rows are kept."""
        return {"kept_rows": float(len(self.rehearsal.reservoir.rows))}

    def state(self) -> dict[str, Any]:
        """The reservoir."""
        return self.rehearsal.reservoir.tensors()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The reservoir as it was."""
        self.rehearsal.load(state)

    def carry(self, folder: Path) -> None:
        """Hands the reservoir on."""
        self.rehearsal.save(folder)

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The replayed rows."""
        return Added(trained=self.options.fraction)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The reservoir."""
        return AddedMemory(held=float(self.options.buffer_mib * 2**20))
