"""Adapters (arXiv 1902.00751, 2110.04366): small bottlenecks in every layer train, and the model stays as it is.

With a set for each domain nothing is forgotten, but a text's domain must be known, or found (`adapt.model.additions`);
one set that all domains train takes no such knowledge and can forget. With `sequence.mode: separate` each domain gets a
model of its own with one set (Adapter-ONE of arXiv 2302.03241).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, PositiveFloat, PositiveInt
from adapt.method.base import AddedMemory, Method, Setting
from adapt.method.domain_parameters import check_trained_sets, enter_sets, take_set
from adapt.model.architecture import check_units
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


class Adapters(Method):
    """Trains adapters alone."""

    Options = AdaptersOptions
    kind: ClassVar[str] = "adapters"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: AdaptersOptions) -> None:
        super().__init__(options)
        self.options: AdaptersOptions = options
        self.by_domain = options.per_domain
        self._names: list[str] = []

    @property
    def _made(self) -> dict[str, Any]:
        """The options of the addition."""
        options = self.options
        return {
            "width": options.width,
            "form": options.form,
            "placement": options.placement,
            "scale": options.scale,
        }

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that have other additions.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_units(model)
        check_trained_sets(config, model, self.kind, self.kind, self._made, self.by_domain)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and puts the domain's adapters in, by the run's seed. It computes what it did."""
        from adapt.model.additions.bottlenecks import attach_adapters

        self._names = take_set(model, setting, self.by_domain, lambda: attach_adapters(model, 1, **self._made))
        return model

    def resize(self, config: Any) -> None:
        """Says which adapters there are."""
        enter_sets(config, self.kind, self._names, self._made)

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
