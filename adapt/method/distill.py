"""Distillation from the model before a domain (learning without forgetting, arXiv 1606.09282; KD, arXiv 1503.02531).

The model that the domain starts with stays beside the one that learns, frozen, and sees the same corrupted text. To the
loss is added, averaged over the predictions of the global batch, how far the two are apart: in the words that they
predict, or in the states that they make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import NonNegativeFloat, PositiveFloat
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tensor = Any
"""torch's. Parsing runs what stands under TYPE_CHECKING beside options, and must not load torch."""
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class DistillOptions:
    """Distillation: the model stays near the one it was before the domain (arXiv 1606.09282)."""

    weight: NonNegativeFloat = 1.0
    """Weight in the loss of the distance between the two models; 0 leaves it out."""
    of: Literal["logits", "states"] = "logits"
    """What is compared where a prediction is asked. `logits`: the divergence of the distributions over the vocabulary.
    `states`: the mean squared difference of the last hidden states, each number counting alike."""
    temperature: PositiveFloat = 2.0
    """`logits`: what scores are divided by first. Above 1 words that are unlikely count more."""


class Distill(Method):
    """Keeps what the model before predicted on the text of the domain."""

    Options = DistillOptions
    kind: ClassVar[str] = "distill"

    def __init__(self, options: DistillOptions) -> None:
        super().__init__(options)
        self.options: DistillOptions = options
        self.teacher: Any = None
        """The model before, frozen; None where the distance has no weight."""
        self._precision = "fp32"
        self._total: Tensor | None = None  # distances summed since the last report
        self._predictions = 0  # that they are of

    def settings(self) -> dict[str, Any]:
        """What is used: no temperature where states are compared."""
        used = ("weight", "of", *(["temperature"] if self.options.of == "logits" else []))
        return {name: getattr(self.options, name) for name in used}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Loads the model before, which ZeRO does not divide: every rank has all of it."""
        if self.options.weight:
            assert setting.load
            self.teacher = setting.load(setting.anchor).eval().requires_grad_(False).to(setting.device)
            self._precision = setting.precision
        return model

    def losses(
        self, model: Any, parts: Sequence[Any], objective: Any, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """One pass of each model for every micro-batch."""
        if self.teacher is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        distances = self._of_logits if self.options.of == "logits" else self._of_states
        for part in parts:
            loss, distance = distances(model, part)
            self._total = distance.detach() if self._total is None else self._total + distance.detach()
            self._predictions += len(part.targets)
            yield loss, distance * (self.options.weight / predictions)

    def _of_logits(self, model: Any, part: Any) -> tuple[Tensor, Tensor]:
        """The loss, and the summed divergence from the teacher, of one pass."""
        import torch

        from adapt.model.linear_losses import LinearScores, linear_cross_entropy, linear_divergence
        from adapt.model.sparse_prediction import compared_at

        packed, positions, targets = part.packed(), part.asked(), part.answers()
        wanted: list[LinearScores] = []

        def kept(*scores: Any) -> Tensor:
            wanted.append(LinearScores(*scores))
            return scores[0].new_zeros(1)

        def compared(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            loss, _ = linear_cross_entropy(hidden, weight, bias, targets)
            scores = LinearScores(hidden, weight, bias)
            return torch.stack((loss, linear_divergence(scores, wanted[0], self.options.temperature)))

        with self._as_trained(part.device):
            compared_at(self.teacher, packed, positions, kept)
        loss, distance = compared_at(model, packed, positions, compared)
        return loss, distance

    def _of_states(self, model: Any, part: Any) -> tuple[Tensor, Tensor]:
        """The loss, and the summed mean squares of what states of the two models differ by, of one pass."""
        from adapt.model.sparse_prediction import loss_and_states, states_of

        packed, positions = part.packed(), part.asked()
        with self._as_trained(part.device):
            wanted = states_of(self.teacher, packed).index_select(0, positions)
        loss, states = loss_and_states(model, packed, positions, part.answers())
        difference = states.index_select(0, positions).float() - wanted.float()
        return loss, difference.square().mean(1).sum()

    @contextmanager
    def _as_trained(self, device: Any) -> Iterator[None]:
        """In the precision of the training, without gradients."""
        import torch

        dtype = getattr(torch, TYPES[self._precision])
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=self._precision != "fp32"):
            yield

    def report(self) -> dict[str, float]:
        """The mean distance since the last report [nats, or squares]. All ranks call it."""
        if self.teacher is None:
            return {}
        import torch

        from adapt.method.collectives import summed

        own = torch.zeros(()) if self._total is None else self._total
        total, predictions = summed(torch.stack((own.double(), own.new_tensor(self._predictions).double()))).tolist()
        self._total, self._predictions = None, 0
        return {"distance": total / max(predictions, 1)}

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The teacher's pass, forward only."""
        return Added(seen=1.0 if self.options.weight else 0.0)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The teacher, whole on every rank."""
        return AddedMemory(held=4.0 * size.parameters if self.options.weight else 0.0)
