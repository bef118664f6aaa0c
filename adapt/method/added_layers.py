"""Methods that add modules to every layer, a set for each domain, and train only these: `adapters` and `demix`.

Adapters (arXiv 1902.00751, 2110.04366) are small bottlenecks. If each domain has its own set, nothing is forgotten, but
the domain of a text must be known or predicted (`adapt.model.additions`). If all domains train the same set, a text's
domain need not be known, but the set can forget. With `sequence.mode: separate` each domain gets its own model with one
set (Adapter-ONE of arXiv 2302.03241).

In DEMix (arXiv 2108.05036), each domain has a feed-forward expert in every layer. The first model is pretrained, so all
domains are learnt by the paper's DEMix-DAPT: a new expert starts as a copy of the nearest domain's expert, and
everything else is frozen. Nothing can be forgotten. If the domain of a text is unknown, each expert is weighted by how
well it has predicted the text so far (`adapt.evaluate.losses`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, PositiveFloat, PositiveInt
from adapt.method.base import AddedMemory
from adapt.method.domain_parameters import TrainsSets, Words, check_domain_sets, check_trained_sets
from adapt.model.architecture import check_units
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class AdaptersOptions:
    """Options of adapters, which are small bottlenecks in every layer (arXiv 1902.00751)."""

    width: PositiveInt = 64
    """Number of neurons in each bottleneck."""
    form: Literal["sequential", "parallel"] = "sequential"
    """`sequential`: an adapter changes the output of its block (arXiv 1902.00751). `parallel`: an adapter reads the
    input of its block and adds to the block's output (arXiv 2110.04366, with a width of 512, a scale of 4, and
    placement feed_forward)."""
    placement: Literal["both", "attention", "feed_forward"] = "both"
    """The blocks of a layer that have an adapter. AdapterFusion (arXiv 2005.00247) uses `feed_forward`."""
    scale: PositiveFloat = 1.0
    """Factor of the output of parallel adapters."""
    per_domain: bool = True
    """`true` gives each domain its own adapters, trained only on its text. `false` trains one set on all domains."""


class Adapters(TrainsSets):
    """Trains adapters and freezes the model."""

    Options = AdaptersOptions
    kind: ClassVar[str] = "adapters"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: AdaptersOptions) -> None:
        super().__init__(options)
        self.options: AdaptersOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind and options of the parameters that are added to the model: all options except `per_domain`."""
        made = asdict(self.options)
        del made["per_domain"]
        return self.kind, made

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that already have added parameters of another kind.

        Raises:
            ConfigError, ModelError: name the problem.
        """
        check_units(model)
        check_trained_sets(config, model, self.kind, *self.addition, self.by_domain)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """Returns the model's dimensions with the adapters of one domain, through which every token passes."""
        return size.with_matrices(self._elements(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of one domain's adapters. Only these parameters have gradients and optimizer state."""
        added = self._elements(size)
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))

    def _elements(self, size: ModelSize) -> float:
        """Returns the number of elements in the matrices of one domain's adapters."""
        blocks = 2 if self.options.placement == "both" else 1
        return float(size.layers * blocks * 2 * size.hidden * self.options.width)


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
        from adapt.model.additions import domain_modules  # imported here, because it loads torch

        is_as_another = number and self.options.initial == "nearest"
        nearest = domain_modules.nearest_domain_to(model, number) if is_as_another else None
        domain_modules.begin_experts(model, number, nearest)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """Returns the model's dimensions with one expert per domain. Each token passes through one expert."""
        return replace(size, parameters=size.parameters + len(trainings) * _expert_parameters(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the share of one domain's experts in the model's parameters, since only these are trained."""
        return AddedMemory(trained=min(1.0, _expert_parameters(size) / size.parameters))


def _expert_parameters(size: ModelSize) -> int:
    """Returns the number of elements in the matrices of all layers' feed-forward blocks."""
    return size.layers * (3 if size.gated else 2) * size.hidden * size.inner
