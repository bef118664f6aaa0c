"""LoRA (arXiv 2106.09685) and variants: linear layers get low-rank adapters B A, and only these adapters train.

LoRA "learns less and forgets less" than full training (arXiv 2405.09673). The default options are that paper's settings
for continued pre-training. At the end of a domain the adapters are merged into the weights. The result is an ordinary
model, and the next domain starts with new adapters. Only attention and feed-forward layers get adapters. Embeddings and
LM head get no adapters, because some libraries would create adapters there and silently not train them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, PositiveFloat, PositiveInt, ProperFraction
from adapt.method import measurement
from adapt.method.base import AddedMemory, Domain, Method, Setting
from adapt.model.architecture import check_units
from adapt.model.size import ModelSize, model_size
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.runner.stage import deciding
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


MOMENT_ROWS = 256
"""Number of randomly drawn rows on which `corda` measures the inputs of each layer (256, as published)."""
MOMENTS, MOMENTS_FILE = "moments", "moments.safetensors"
"""Name of the stage that measures second moments of layer inputs, and name of the file that it writes."""


BOUNDED = ("pissa", "olora", "mica", "corda", "osf")
"""Variants that start from singular directions of the weight W. Their rank cannot exceed the smaller side of W."""
WHOLE_WEIGHTS = ("dora", "osf")
"""Variants that do not work with ZeRO 3, because their modules read parameters of other modules, and ZeRO 3 does not
gather such parameters."""


@dataclass(frozen=True)
class LoraOptions:
    """Options of low-rank adapters in linear layers. The adapters are merged after each domain (arXiv 2106.09685)."""

    kind: Literal["lora", "dora", "pissa", "olora", "mica", "corda", "osf"] = "lora"
    """Variant of LoRA. `lora` starts from B = 0. `dora` also trains the norm of each row of a weight (arXiv
    2402.09353). `pissa` starts from the largest singular directions of a weight (2404.02948), `olora` from orthonormal
    directions (2406.01775). Three variants aim to forget less. `mica` trains only A, on the smallest directions
    (2604.01694). `osf` trains the smallest directions and keeps them orthogonal to the other directions (2504.07097).
    `corda` trains the directions that matter least for known text (2406.05223)."""
    rank: PositiveInt = 256
    """Rank of each adapter; for `osf` the number of trained directions. arXiv 2405.09673 uses 256 for continued
    pre-training of large models."""
    scale: PositiveFloat = 2.0
    """Factor of the adapters' outputs: alpha / rank in the paper. `osf` ignores it."""
    dropout: ProperFraction = 0.0
    """Dropout on the inputs of adapters. `osf` ignores it."""


class Lora(Method):
    """Trains low-rank adapters B A, which are added to frozen weights W."""

    Options = LoraOptions
    kind: ClassVar[str] = "lora"
    trains_head = trains_layers = False

    def __init__(self, options: LoraOptions) -> None:
        super().__init__(options)
        self.options: LoraOptions = options
        self._transposed = False  # whether weights are [inputs, outputs], as in GPT-2
        if options.kind in WHOLE_WEIGHTS:
            self.zero_stages = (0, 1, 2)

    def settings(self) -> dict[str, Any]:
        """Returns the options in the key, with peft's version, because peft initializes the adapters."""
        settings = super().settings()
        variant = settings.pop("kind")  # renamed, because key entry `kind` is the method's name
        return {**settings, **({"variant": variant} if variant != "lora" else {}), **deciding("peft")}

    def check(self, config: Config, model: Path) -> None:
        check_units(model)
        if self.options.kind == "corda":
            measurement.check_prepared(config, "the input of the layers", "choose another lora.kind")
        size = model_size(model)
        if size and f"layers:{size.layers}" in config.training.freeze:
            raise ConfigError(
                f"training.freeze has layers:{size.layers}, which freezes all layers, but method.kind lora trains only"
                " adapters in the layers",
                "leave training.freeze out, or freeze fewer layers",
            )
        if size:
            check_rank(self.options, min(size.hidden, size.attention))

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """`corda` measures inputs on the replayed general text, or on the domain's text without such text."""
        return self._measured(first, (first.general,) if first.general else first.texts)

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        return self._measured(learnt, learnt.texts)

    def _measured(self, domain: Domain, texts: tuple[Stage[Any], ...]) -> Mapping[str, Stage[Any]]:
        if self.options.kind != "corda":
            return {}
        config, previous = domain.config, domain.past.get(MOMENTS)
        return {MOMENTS: MeasureMoments(config.name, config, domain.start, texts, previous)}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and adds random adapters, which do not change the outputs yet."""
        from adapt.method.lora.variants import add_low_rank

        number = setting.seed + (setting.number or 0)
        moments = setting.past[MOMENTS] / MOMENTS_FILE if self.options.kind == "corda" else None
        self._transposed = add_low_rank(model, self.options, number % 2**63, moments)
        return model

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
        from adapt.method.lora.variants import merged_state

        return merged_state(state, self.options.scale, self._transposed)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        return size.with_matrices(self._elements(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        added = self._elements(size)
        held = {"osf": 2.0}.get(self.options.kind, 1.0)  # osf also keeps the initial directions
        trained = {"mica": 0.5}.get(self.options.kind, 1.0)
        return AddedMemory(held=4 * held * added, trained=min(1.0, trained * added / size.parameters))

    def _elements(self, size: ModelSize) -> float:
        """Returns the number of elements of A and B in all linear layers."""
        # how many linear parts of a layer read or write states of each width below; approximate if parts are fused or
        # heads share keys
        parts = 6 + size.gated, 4, 2 + size.gated
        width = sum(n * each for n, each in zip(parts, (size.hidden, size.attention, size.inner), strict=True))
        return float(self.options.rank * size.layers * width)


@dataclass(frozen=True, eq=False)
class MeasureMoments(Stage[measurement.Summed]):
    """Measures second moments of linear layers' inputs (arXiv 2406.05223), averaged over all domains so far."""

    kind = "moments"
    device_time = "own"

    name: str
    config: Config
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts for the measurement."""
    previous: Stage[measurement.Summed] | None
    """The stage with the mean second moments of the layers' inputs on earlier domains. None for the first domain."""

    def what(self) -> Mapping[str, Any]:
        return measurement.what_of_sums(self.config, self.start, MOMENT_ROWS)

    def needs(self) -> Mapping[str, float]:
        return measurement.needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[measurement.Summed]:
        start, texts = self.start.made(done), tuple(str(done[text].path) for text in self.texts)
        moments = measurement.ImportedFunction("adapt.method.lora.variants:second_moments")
        summing = measurement.Summing(self.config, start, texts, str(folder), MOMENT_ROWS, "second moments", moments)
        return measurement.summed_up(summing, MOMENTS_FILE, done[self.previous].path if self.previous else None)


def check_rank(options: LoraOptions, smallest: int) -> None:
    """Checks that the rank does not exceed the number of singular directions of the smallest weight.

    Args:
        options: the method's options.
        smallest: minimum number of rows or columns over all weights.

    Raises:
        ConfigError: the rank is too large. The error gives the maximum rank.
    """
    most = smallest - (options.kind == "osf")  # osf must leave at least one direction to preserve
    if options.kind in BOUNDED and options.rank > most:
        raise ConfigError(
            f"lora.rank is {options.rank}, but lora.kind {options.kind} starts from singular directions of the"
            f" weights, and the smallest weight matrix has only {smallest}",
            f"set lora.rank to {most} or less",
        )
