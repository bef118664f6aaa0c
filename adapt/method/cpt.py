"""CPT (Ke et al. 2022, arXiv 2210.05549): plugins that all domains share, of which each domain uses a part.

A plugin stands beside attention and another beside the feed-forward block of every layer; both of its layers have
masks as HAT learns them (arXiv 1801.01423), rounded once learnt. The model itself stays, but for its norms, which every
domain trains on: what CPT forgets, it forgets there.
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
    """Shared plugins with masks for each domain (CPT, arXiv 2210.05549)."""

    width: PositiveInt = 512
    """Neurons of each plugin; the published code has 512 or 768."""
    form: Literal["parallel", "sequential"] = "parallel"
    """`parallel`: a plugin reads what its block reads, and adds to what that puts out. `sequential`: it reads what its
    block puts out, as adapters do."""
    train_norms: bool = True
    """Whether the norms of the layers train too, as published. They are shared: `false` forgets nothing."""


class Cpt(LearnsMasks):
    """Trains plugins, their masks and norms."""

    Options = CptOptions
    kind: ClassVar[str] = "cpt"
    options: CptOptions

    def settings(self) -> dict[str, Any]:
        """The options that enter the key, and the steepness, which was an option once."""
        return {**super().settings(), "steepest": STEEPEST}

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Plugins whose masks are rounded."""
        options = self.options
        made = {"width": options.width, "form": options.form, "steepest": STEEPEST, "is_hard": True}
        return "plugins", made

    def check(self, config: Config, model: Path) -> None:
        """Refuses models that cannot have masks.

        Raises:
            ConfigError, ModelError: as `check_domain_sets`.
        """
        check_domain_sets(config, model, self.kind, *self.addition)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Puts plugins in, and frees them and the norms."""
        from adapt.method.hat.mask_learning import MaskLearning, used_in_plugins
        from adapt.model.layers import layers_of

        super().prepare_model(model, setting)
        self.learning = MaskLearning(model, used_in_plugins, setting.steps, STEEPEST, sparsity=0.0)
        for layer in layers_of(model) if self.options.train_norms else ():
            for module in layer.module.modules():
                if "Norm" in type(module).__name__:
                    module.requires_grad_(True)
        return model

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """A token passes the plugins."""
        return size.with_matrices(plugin_elements(size, self.options.width))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The plugins, and what the domain began with."""
        return plugins_memory(size, self.options.width)
