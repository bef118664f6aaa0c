"""Methods `hat` and `cpt`: each domain learns which units it uses, and later domains do not change these units.

With a domain's masks, the model's outputs are the same as when the domain was learnt (HAT, arXiv 1801.01423). To
choose the masks, the domain of a text must be known or predicted (`adapt.model.additions`).

In CPT (Ke et al. 2022, arXiv 2210.05549), all domains share plugins, and each domain uses a part of them. Every layer
has one plugin at its attention and one at its feed-forward block. Both linear layers of a plugin have masks that are
learnt as in HAT and rounded after training. The rest of the model is frozen, except for the norms of the layers. Every
domain continues to train the norms, so only they can forget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import NonNegativeFloat, PositiveInt
from adapt.method.base import AddedMemory, Setting, TrainingEngine
from adapt.method.domain_parameters import TrainsSets
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.hat.mask_learning import MaskLearning
    from adapt.objective.objective import Corrupted, Objective


STEEPEST = 400.0
"""Steepness s_max of the masks at the end of training, as in the published code. Masks start at 1 / s_max."""


@dataclass(frozen=True)
class HatOptions:
    """Options of HAT: a mask per domain protects the units that the domain uses (arXiv 1801.01423)."""

    earlier: ClassVar[Mapping[str, Any]] = {"steepest": STEEPEST}
    on: Literal["adapters", "model"] = "adapters"
    """What is masked and trained. `adapters`: bottlenecks that all domains share, after the attention and the
    feed-forward block of every layer; the model itself is frozen. `model`: attention heads and neurons of the model
    itself; embeddings, norms and LM head have no units and are frozen."""
    width: PositiveInt = 512
    """Number of neurons of each bottleneck (on: adapters)."""
    sparsity: NonNegativeFloat = 0.75
    """Penalty in the loss for claiming unused units. At 0, the first domains may claim them all."""


class LearnsMasks(TrainsSets):
    """Base class of methods that learn a domain's masks and the masked weights."""

    goes_alone: ClassVar[bool] = True
    by_domain = True
    exports_trained = False  # exported masks are steeper than masks during training, so outputs differ
    depends_on_length = True
    options: HatOptions | CptOptions
    learning: MaskLearning

    @property
    def sparsity(self) -> float:
        """Penalty in the loss for claiming unused units."""
        return 0.0

    @property
    def trains_norms(self) -> bool:
        """Whether the norms of the layers train too."""
        return False

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Adds the masks. Makes only the masks, the masked weights and, if `trains_norms`, the norms trainable."""
        from adapt.method.hat.mask_learning import MaskLearning, train_norms, used_in_layers, used_in_plugins

        super().prepare_model(model, setting)
        used = used_in_layers if self.addition[0] == "unit_masks" else used_in_plugins
        self.learning = MaskLearning(model, used, setting.steps, STEEPEST, self.sparsity)
        if self.trains_norms:
            train_norms(model)
        return model

    def begin(self, engine: TrainingEngine) -> None:
        self.learning.begin(engine)

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        self.learning.anneal(step)
        return super().losses(model, parts, objective, step, predictions)

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        self.learning.change_gradients(engine)

    def report(self) -> dict[str, float]:
        return self.learning.report()

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.learning.merge(state)

    def set_elements(self, size: ModelSize) -> float:
        return 4.0 * size.layers * size.hidden * self.options.width  # two plugins per layer, with two matrices each

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        return size.with_matrices(self.set_elements(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        added = self.set_elements(size)  # a copy of the starting values, and a masked copy in each pass
        values = 2.0 * (3 * self.options.width + 2 * size.hidden)
        share = min(1.0, added / size.parameters)
        return AddedMemory(held=8 * added, kept=4 * added, layer_values=values, trained=share)


class Hat(LearnsMasks):
    """Trains masks of units and the masked weights."""

    Options = HatOptions
    kind: ClassVar[str] = "hat"

    def __init__(self, options: HatOptions) -> None:
        super().__init__(options)
        self.options: HatOptions = options
        self.trains_layers = options.on == "model"

    def settings(self) -> dict[str, Any]:
        options = super().settings()
        return options if self.options.on == "adapters" else {k: v for k, v in options.items() if k != "width"}

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        steepest = {"steepest": STEEPEST}
        if self.options.on == "model":
            return "unit_masks", steepest
        return "plugins", {"width": self.options.width, "form": "sequential", **steepest, "is_hard": False}

    @property
    def sparsity(self) -> float:
        return self.options.sparsity

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        return size if self.options.on == "model" else super().trained_size(size, trainings)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        if self.options.on == "model":
            layers = 4.0 * size.layer_parameters
            return AddedMemory(layers, layers, size.inner + 2 * size.hidden, size.layer_parameters / size.parameters)
        return super().added_memory(size, shared_by)


@dataclass(frozen=True)
class CptOptions:
    """Options of CPT: plugins that all domains share, with masks for each domain (arXiv 2210.05549).

    A plugin reads the input of its block and adds to the block's output.
    """

    earlier: ClassVar[Mapping[str, Any]] = {"form": "parallel", "steepest": STEEPEST}
    width: PositiveInt = 512
    """Number of neurons in each plugin; the published code uses 512 or 768."""
    train_norms: bool = True
    """Whether the norms of the layers train too, as published. All domains share the norms, so only the norms can
    forget; `false` prevents all forgetting."""


class Cpt(LearnsMasks):
    """Trains the plugins, their masks, and the norms of the layers."""

    Options = CptOptions
    kind: ClassVar[str] = "cpt"
    options: CptOptions

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        return "plugins", {"width": self.options.width, **self.options.earlier, "is_hard": True}

    @property
    def trains_norms(self) -> bool:
        return self.options.train_norms
