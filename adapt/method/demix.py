"""DEMix (arXiv 2108.05036): each domain has a feed-forward expert in every layer, and only its own is trained.

The model has learnt already, so a sequence is the paper's DEMix-DAPT from the first domain on: a new expert begins as
the nearest one, and all else is frozen. Nothing can be forgotten; where no domain is given, experts are mixed by how
well each has predicted the text so far (`adapt.evaluate.losses`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config
from adapt.method.base import AddedMemory
from adapt.method.domain_parameters import TrainsSets, Words, check_domain_sets
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class DemixOptions:
    """A feed-forward expert for each domain (arXiv 2108.05036)."""

    initial: Literal["nearest", "base"] = "nearest"
    """What the expert of a new domain begins as: that of the domain whose prototype is nearest to its own, or the
    model's own feed-forward blocks. The first begins as the model's."""


class Demix(TrainsSets):
    """Trains the experts of one domain alone."""

    Options = DemixOptions
    kind: ClassVar[str] = "demix"
    by_domain = True
    options: DemixOptions

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Experts have no options."""
        return "experts", {}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that have other additions.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_domain_sets(config, model, self.kind, *self.addition)

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """As the experts of another domain, or as the model's own blocks, so that it computes what it did."""
        from adapt.model.additions.domain_modules import nearest_domain_to
        from adapt.model.additions.experts import begin_experts

        is_as_another = number and self.options.initial == "nearest"
        begin_experts(model, number, nearest_domain_to(model, number) if is_as_another else None)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """The model with an expert for each of the domains; a token passes one."""
        return replace(size, parameters=size.parameters + len(trainings) * _expert_parameters(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Gradients and optimizer state are of one expert alone, which the size counts among the parameters."""
        return AddedMemory(trained=min(1.0, _expert_parameters(size) / size.parameters))


def _expert_parameters(size: ModelSize) -> int:
    """Those of the feed-forward blocks of all layers."""
    return size.layers * (3 if size.gated else 2) * size.hidden * size.inner
