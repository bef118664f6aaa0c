"""HAT (Serra et al. 2018, arXiv 1801.01423): each domain learns which units it uses, and those stay as they are.

With the masks of a domain the model computes what it did when the domain was learnt, whatever was learnt since. So a
text's domain must be known, or found (`adapt.model.additions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, NonNegativeFloat, PositiveInt
from adapt.method.base import AddedMemory, Setting, TrainingEngine
from adapt.method.domain_parameters import TrainsSets, check_domain_sets
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.hat.mask_learning import MaskLearning
    from adapt.objective.objective import Corrupted, Objective

STEEPEST = 400.0
"""s_max of the published code: how steep the masks are at the end of a training. They begin at 1 / s_max."""


@dataclass(frozen=True)
class HatOptions:
    """Hard attention to the task: masks of units for each domain; what a domain uses is kept (arXiv 1801.01423)."""

    on: Literal["adapters", "model"] = "adapters"
    """What is masked and trained. `adapters`: bottlenecks behind attention and feed-forward block of every layer, which
    all domains share; the model itself stays. `model`: attention heads and neurons of the model itself; embeddings,
    norms and LM head, which have no units, stay."""
    width: PositiveInt = 512
    """`adapters`: neurons of each bottleneck."""
    sparsity: NonNegativeFloat = 0.75
    """Weight in the loss of the share that a domain takes of the units that no other uses; with 0 the first domains may
    leave little to those after."""


class LearnsMasks(TrainsSets):
    """A method that learns masks of a domain with what they mask; its `prepare_model` sets `learning`."""

    goes_alone: ClassVar[bool] = True
    by_domain = True
    depends_on_length = True
    learning: MaskLearning

    def begin(self, engine: TrainingEngine) -> None:
        """Looks at what this rank holds."""
        self.learning.begin(engine)

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Plain losses, with masks as steep as they are at the step."""
        self.learning.anneal(step)
        return super().losses(model, parts, objective, step, predictions)

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Compensates the gradients of embeddings."""
        self.learning.change_gradients(engine)

    def report(self) -> dict[str, float]:
        """How much is left to learn with."""
        return self.learning.report()

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the other domains use is as it was."""
        return self.learning.merge(state)

    def cut_short(self, done: int) -> str:
        """Says how steep the masks became."""
        return self.learning.cut_short(done)


class Hat(LearnsMasks):
    """Trains masks, and what they mask."""

    Options = HatOptions
    kind: ClassVar[str] = "hat"
    options: HatOptions

    def settings(self) -> dict[str, Any]:
        """What is used: no width where the model itself is masked."""
        given = {**super().settings(), "steepest": STEEPEST}  # once an option; it stays in keys
        return given if self.options.on == "adapters" else {k: v for k, v in given.items() if k != "width"}

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """The kind of the model's addition, and its options."""
        steepest = {"steepest": STEEPEST}
        if self.options.on == "model":
            return "unit_masks", steepest
        return "plugins", {"width": self.options.width, "form": "sequential", **steepest, "is_hard": False}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models that cannot have masks.

        Raises:
            ConfigError, ModelError: as `check_domain_sets`.
        """
        check_domain_sets(config, model, self.kind, *self.addition)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Puts masks in, and frees what they mask."""
        from adapt.method.hat.mask_learning import MaskLearning, used_in_layers, used_in_plugins

        super().prepare_model(model, setting)
        options, used = self.options, used_in_layers if self.options.on == "model" else used_in_plugins
        self.learning = MaskLearning(model, used, setting.steps, STEEPEST, options.sparsity)
        return model

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """A token passes the plugins, where masks are not on the model itself."""
        return size.with_matrices(0 if self.options.on == "model" else plugin_elements(size, self.options.width))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """What is masked stands twice: as the domain began with it, too, and made anew in each pass."""
        if self.options.on == "model":
            layers = 4.0 * size.layer_parameters
            return AddedMemory(layers, layers, size.inner + 2 * size.hidden, size.layer_parameters / size.parameters)
        return plugins_memory(size, self.options.width)


def plugin_elements(size: ModelSize, width: int) -> float:
    """Those of the matrices of two plugins a layer."""
    return 4.0 * size.layers * size.hidden * width


def plugins_memory(size: ModelSize, width: int) -> AddedMemory:
    """The memory of two masked plugins a layer, without which nothing has gradients."""
    added = plugin_elements(size, width)
    values = 2.0 * (3 * width + 2 * size.hidden)
    return AddedMemory(held=8 * added, kept=4 * added, layer_values=values, trained=min(1.0, added / size.parameters))
