"""DEMix (arXiv 2108.05036): each domain has a feed-forward expert in every layer, and trains only its own expert.

The first model is pretrained, so all domains are learnt by the paper's DEMix-DAPT: a new expert starts as a copy of the
nearest domain's expert, and everything else is frozen. Nothing can be forgotten. If the domain of a text is unknown,
each expert is weighted by how well it has predicted the text so far (`adapt.evaluate.losses`).
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
    """Options of DEMix, which trains a feed-forward expert for each domain (arXiv 2108.05036)."""

    initial: Literal["nearest", "base"] = "nearest"
    """What a new domain's expert copies at its start: the expert of the domain with the `nearest` prototype, or the
    feed-forward blocks of the `base` model. The first expert always copies the model's blocks."""


class Demix(TrainsSets):
    """Trains the experts of one domain and freezes everything else."""

    Options = DemixOptions
    kind: ClassVar[str] = "demix"
    by_domain = True
    options: DemixOptions

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind of the parameters that are added to the model, `experts`, and no options, because experts have none."""
        return "experts", {}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that already have added parameters of another kind.

        Raises:
            ConfigError, ModelError: name the problem.
        """
        check_domain_sets(config, model, self.kind, *self.addition)

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """Initializes the experts of a new domain as copies.

        If `initial` is `nearest` and there is another domain, the nearest domain's experts are copied. Otherwise the
        model's own feed-forward blocks are copied.
        """
        from adapt.model.additions import domain_modules, experts  # imported here, because they load torch

        is_as_another = number and self.options.initial == "nearest"
        nearest = domain_modules.nearest_domain_to(model, number) if is_as_another else None
        experts.begin_experts(model, number, nearest)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """Returns the model's dimensions with one expert per domain. Each token passes through one expert."""
        return replace(size, parameters=size.parameters + len(trainings) * _expert_parameters(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the share of one domain's experts in the model's parameters, since only these are trained."""
        return AddedMemory(trained=min(1.0, _expert_parameters(size) / size.parameters))


def _expert_parameters(size: ModelSize) -> int:
    """Returns the number of elements in the matrices of all layers' feed-forward blocks."""
    return size.layers * (3 if size.gated else 2) * size.hidden * size.inner
