"""Adapters (arXiv 1902.00751, 2110.04366): small bottlenecks in every layer train, and the model stays as it is.

With a set for each domain nothing is forgotten, but a text's domain must be known, or found (`adapt.model.additions`);
one set that all domains train takes no such knowledge and can forget. With `sequence.mode: separate` each domain gets a
model of its own with one set (Adapter-ONE of arXiv 2302.03241).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from adapt.config import Config, PositiveFloat, PositiveInt
from adapt.method.base import AddedMemory
from adapt.method.domain_parameters import TrainsSets, check_trained_sets
from adapt.model.architecture import check_units
from adapt.model.size import ModelSize


@dataclass(frozen=True)
class AdaptersOptions:
    """Small bottlenecks in every layer, for each domain or for all (arXiv 1902.00751)."""

    width: PositiveInt = 64
    """Neurons of each bottleneck."""
    form: Literal["sequential", "parallel"] = "sequential"
    """`sequential`: an adapter changes what its block puts out (arXiv 1902.00751). `parallel`: it reads what its block
    reads, and adds to what that puts out (arXiv 2110.04366, with a width of 512, a scale of 4 and feed_forward)."""
    placement: Literal["both", "attention", "feed_forward"] = "both"
    """The blocks of a layer that have an adapter; `feed_forward` alone as in AdapterFusion (arXiv 2005.00247)."""
    scale: PositiveFloat = 1.0
    """What parallel adapters are multiplied by."""
    per_domain: bool = True
    """`true` gives each domain adapters of its own, trained on its text alone. `false` trains one set through all."""


class Adapters(TrainsSets):
    """Trains adapters alone."""

    Options = AdaptersOptions
    kind: ClassVar[str] = "adapters"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: AdaptersOptions) -> None:
        super().__init__(options)
        self.options: AdaptersOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """All options but for `per_domain`."""
        made = asdict(self.options)
        del made["per_domain"]
        return self.kind, made

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that have other additions.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_units(model)
        check_trained_sets(config, model, self.kind, *self.addition, self.by_domain)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """A token passes the adapters of one domain."""
        return size.with_matrices(self._elements(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The adapters of a domain; gradients and optimizer state are of these alone."""
        added = self._elements(size)
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))

    def _elements(self, size: ModelSize) -> float:
        """Those of the adapters' matrices, for one domain."""
        blocks = 2 if self.options.placement == "both" else 1
        return float(size.layers * blocks * 2 * size.hidden * self.options.width)
