"""The seam for methods against forgetting. Plain continued pre-training is the method that adds nothing.

The hooks are those that soft masks (DAS), penalties (EWC), distillation (KD), replay with stored states (DER++), task
masks (HAT, CPT), growth (ELLE) and experts (DEMIX) need when written down together; replay of text is a mixture of
corpora and importance is a stage of its own, so neither is a hook.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from adapt.objective.base import Corrupted, Objective


class Method:
    """Plain training: every hook does nothing."""

    def prepare_model(self, model: torch.nn.Module, inputs: Mapping[str, Path]) -> None:
        """Changes the model before the engine wraps it: gates, masks, plugins, a frozen teacher.

        Raises:
            ModelError: the method cannot train this model.
        """

    def extra_loss(self, model: torch.nn.Module, corrupted: Corrupted, step: int) -> torch.Tensor | None:
        """What is added to the loss of one micro-batch; None for nothing.

        The loop averages it over all micro-batches and ranks, weighed by their numbers of predictions. So a mean over a
        micro-batch's predictions (distillation) becomes the mean over the global batch, and a penalty that does not
        look at the batch (EWC) counts once, however the global batch is cut.
        """
        return None

    def losses(
        self, model: torch.nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """The passes of a step, one after another: whoever asks goes back through one before asking for the next.

        A method that computes both losses in one pass, or looks beyond a micro-batch, overrides this instead of
        `extra_loss`. All ranks call it at the same time, except in a trial of how much memory it takes (see
        `adapt.method.gather.alone`).

        Args:
            model: the engine, or in a trial the model itself.
            parts: this rank's micro-batches of the step, in the order of the global batch; all ranks have as many.
            objective: of the training.
            step: number of the optimizer step, from 0.
            predictions: of the global batch.

        Yields:
            For each micro-batch the objective's summed loss, and what it adds to the loss of the step, or None. Of that
            the gradient counts, added up over micro-batches and ranks; its value need not mean anything.
        """
        for part in parts:
            loss, extra = objective.loss(model, part), self.extra_loss(model, part, step)
            yield loss, None if extra is None else extra * (len(part.targets) / predictions)

    def report(self) -> dict[str, float]:
        """Figures since the last call, for the training's log. All ranks call it, as they do `losses`."""
        return {}

    def merge(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Turns the trained state into the weights of an ordinary model, for export."""
        return state
