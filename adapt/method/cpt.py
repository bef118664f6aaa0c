"""CPT (Ke et al. 2022, arXiv 2210.05549): all domains share plugins, and each domain uses a part of them.

Every layer has one plugin at its attention and one at its feed-forward block. Both linear layers of a plugin have masks
that are learnt as in HAT (arXiv 1801.01423) and rounded after training. The rest of the model is frozen, except for the
norms of the layers, which every domain trains further. So only these norms can forget.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, PositiveInt
from adapt.method.base import AddedMemory, Setting
from adapt.method.domain_parameters import check_domain_sets
from adapt.method.hat.method import STEEPEST, LearnsMasks, plugin_elements, plugins_memory
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class CptOptions:
    """Options of CPT: plugins that all domains share, with masks for each domain (arXiv 2210.05549)."""

    width: PositiveInt = 512
    """Number of neurons in each plugin; the published code uses 512 or 768."""
    form: Literal["parallel", "sequential"] = "parallel"
    """`parallel`: a plugin reads the input of its block and adds to the block's output. `sequential`: a plugin reads
    the output of its block, as adapters do."""
    train_norms: bool = True
    """Whether the norms of the layers train too, as published. All domains share the norms, so only the norms can
    forget; `false` prevents all forgetting."""


class Cpt(LearnsMasks):
    """Trains the plugins, their masks, and the norms of the layers."""

    Options = CptOptions
    kind: ClassVar[str] = "cpt"
    options: CptOptions

    def settings(self) -> dict[str, Any]:
        """Returns the options that enter the key, and the steepness, which is a constant but was once an option."""
        return {**super().settings(), "steepest": STEEPEST}

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind and options of the parameters that are added to the model: plugins with rounded masks."""
        options = self.options
        made = {"width": options.width, "form": options.form, "steepest": STEEPEST, "is_hard": True}
        return "plugins", made

    def check(self, config: Config, model: Path) -> None:
        """Refuses models that cannot have plugins with masks.

        Raises:
            ConfigError, ModelError: see `check_domain_sets`.
        """
        check_domain_sets(config, model, self.kind, *self.addition)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Adds the plugins to the model and trains only them, their masks, and the norms."""
        from adapt.method.hat.mask_learning import MaskLearning, train_norms, used_in_plugins

        super().prepare_model(model, setting)
        self.learning = MaskLearning(model, used_in_plugins, setting.steps, STEEPEST, sparsity=0.0)
        if self.options.train_norms:
            train_norms(model)
        return model

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """Returns the model's dimensions with the plugins' matrices, through which every token passes."""
        return size.with_matrices(plugin_elements(size, self.options.width))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of the plugins, including a copy of their weights before this domain."""
        return plugins_memory(size, self.options.width)
