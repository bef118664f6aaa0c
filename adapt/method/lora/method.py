"""LoRA (arXiv 2106.09685) and its kin: each linear layer of the transformer gets an addition, and nothing else trains.

"Learns less and forgets less" than full training (arXiv 2405.09673, whose settings for continued pre-training are the
defaults). At the end of a domain the additions are merged into the weights, so an ordinary model is handed on, and the
next domain begins with additions of its own. The layers are those that hold a transformer's units: additions to
embeddings and LM head would be made and silently not trained by some libraries, so there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, Fraction, PositiveFloat, PositiveFraction, PositiveInt, ProperFraction
from adapt.method.base import AddedMemory, Domain, Method, Setting
from adapt.method.measurement import (
    AddedUp,
    Summed,
    Summing,
    check_prepared,
    needs_as_training,
    summed_up,
    what_of_sums,
)
from adapt.model.architecture import check_units
from adapt.model.size import ModelSize, model_size
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.runner.key import deciding
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from adapt.objective.objective import Batch

MOMENTS, MOMENTS_FILE = "moments", "moments.safetensors"
"""What the method calls its stage, and the stage its file."""


BOUNDED = ("pissa", "olora", "mica", "corda", "osf")
"""Kinds that begin with singular directions of W, of which there are as many as its smaller side."""
WHOLE_WEIGHTS = ("dora", "osf")
"""Kinds whose passes read parameters of other modules, which ZeRO 3 has not gathered then."""
WHOLE_BASES = ("lora", "dora", "mica")
"""Kinds under which peft's layer keeps W as it was."""


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank additions to the transformer's linear layers, merged after each domain (arXiv 2106.09685)."""

    kind: Literal["lora", "dora", "pissa", "olora", "mica", "corda", "osf"] = "lora"
    """`lora` begins with B = 0; `dora` trains the length of each row of a weight too (arXiv 2402.09353). `pissa` begins
    with the largest singular directions of a weight (2404.02948), `olora` with orthonormal ones (2406.01775). Against
    forgetting, `mica` trains A alone behind the smallest directions (2604.01694), `osf` trains the smallest ones,
    orthogonally to the others (2504.07097), and `corda` those that matter least for text that is known (2406.05223)."""
    rank: PositiveInt = 256
    """Rank of each addition, of `osf` the directions: 256 for continued pre-training of large models (arXiv
    2405.09673)."""
    scale: PositiveFloat = 2.0
    """What additions are multiplied by: alpha / rank of the paper. `osf` has none."""
    dropout: ProperFraction = 0.0
    """Dropout of what enters an addition. `osf` has none."""
    layers: PositiveFraction = 1.0
    """Share of the linear layers that get an addition: those whose weights have the lowest condition numbers, which
    should hold least that can be forgotten (KappaTune, arXiv 2506.16289, takes .2)."""
    intruders: Fraction = 1.0
    """What is left, when additions are merged, of intruder dimensions: large directions of a weight that it had nothing
    alike of before (arXiv 2410.21228; peft takes .75). 1 leaves additions as they are; of `lora`, `dora` and `mica`."""
    moment_sequences: PositiveInt = 256
    """Rows of text, drawn at random, on which `corda` measures what enters each layer (256, as published)."""


class Lora(Method):
    """Trains additions B A to frozen weights W."""

    Options = LoraOptions
    kind: ClassVar[str] = "lora"

    def __init__(self, options: LoraOptions) -> None:
        super().__init__(options)
        self.options: LoraOptions = options
        self._transposed = False  # whether weights are [inputs, outputs], as GPT-2's are
        if options.kind in WHOLE_WEIGHTS:
            self.zero_stages = (0, 1, 2)

    def settings(self) -> dict[str, Any]:
        """Where additions go and how they begin is peft's."""
        settings = super().settings()
        variant = settings.pop("kind")  # `kind` is the method's name there
        del settings["moment_sequences"]  # of a stage of its own
        for unchanged in ("layers", "intruders"):
            if settings[unchanged] == 1:
                del settings[unchanged]
        return {**settings, **({"variant": variant} if variant != "lora" else {}), **deciding("peft")}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, and more directions than weights have.

        Raises:
            ConfigError: the rank is too large, or the kind does not go with the other options.
            ModelError: names the models that are known.
        """
        check_units(model)
        if self.options.intruders < 1 and self.options.kind not in WHOLE_BASES:
            raise ConfigError(
                f"lora.intruders is {self.options.intruders}, but {self.options.kind} keeps no weight as it was",
                "leave lora.intruders at 1, or set lora.kind to lora, dora or mica",
            )
        if self.options.kind == "corda":
            check_prepared(config, "what enters the layers", "set lora.kind to another")
        if size := model_size(model):
            check_rank(self.options, min(size.hidden, size.attention))

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """For `corda`, what enters the layers of the model to begin with: on general text, else on the domain's."""
        return self._measured(first, (first.general,) if first.general else first.texts)

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """The same of the model that has learnt the domain, joined with that of all before."""
        return self._measured(learnt, learnt.texts)

    def _measured(self, domain: Domain, texts: tuple[Stage[Any], ...]) -> Mapping[str, Stage[Any]]:
        if self.options.kind != "corda":
            return {}
        config, wanted, previous = domain.config, self.options.moment_sequences, domain.past.get(MOMENTS)
        return {MOMENTS: MeasureMoments(config.name, config, wanted, domain.start, texts, previous)}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and adds the matrices, A random by the run's seed. What it computes has not changed yet.

        Raises:
            ConfigError, ModelError: this kind cannot train it.
        """
        from adapt.method.lora.variants import add_low_rank

        number = setting.seed + (setting.number or 0)
        moments = setting.past[MOMENTS] / MOMENTS_FILE if self.options.kind == "corda" else None
        self._transposed = add_low_rank(model, self.options, number % 2**63, moments)
        return model

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
        """W with its additions in place of W."""
        from adapt.method.lora.variants import merged_state

        return merged_state(state, self.options.scale, self._transposed, self.options.intruders)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """A token passes the additions beside each part."""
        return size.with_matrices(self._elements(size))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Gradients and optimizer state are of the additions alone; the additions themselves are held beside."""
        added = self._elements(size)
        held = {"osf": 2.0}.get(self.options.kind, 1.0)  # with what the directions were at first
        trained = {"mica": 0.5}.get(self.options.kind, 1.0)
        return AddedMemory(held=4 * held * added, trained=min(1.0, trained * added / size.parameters))

    def _elements(self, size: ModelSize) -> float:
        """Those of A and B, beside all linear parts."""
        parts = 6 + size.gated, 4, 2 + size.gated  # in and out of all parts; about, where these are fused or grouped
        width = sum(n * each for n, each in zip(parts, (size.hidden, size.attention, size.inner), strict=True))
        return float(self.options.layers * self.options.rank * size.layers * width)


@dataclass(frozen=True, eq=False)
class MeasureMoments(Stage[Summed]):
    """Second moments of what enters linear layers (arXiv 2406.05223), the mean over domains so far."""

    kind = "moments"

    name: str
    config: Config
    sequences: int
    """Rows that are passed through the model."""
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that it is measured on."""
    previous: Stage[Summed] | None
    """The moments of the domains before, which the new ones join."""

    def what(self) -> Mapping[str, Any]:
        """The sample, what the model sees of it, and the model."""
        return what_of_sums(self.config, self.start, self.sequences)

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers."""
        return needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[Summed]:
        """Measures on the cluster's devices."""
        start, texts = self.start.made(done), tuple(str(done[text].path) for text in self.texts)
        summing = Summing(self.config, start, texts, str(folder), self.sequences, "second moments", moments)
        return summed_up(summing, MOMENTS_FILE, done[self.previous].path if self.previous else None)


def moments(model: Any, objective: Any, batches: Iterator[tuple[int, Batch]], dtype: torch.dtype) -> AddedUp:
    """The sums of x x^T."""
    from adapt.method.lora.moments import second_moments

    return second_moments(model, objective, batches, dtype)


def check_rank(options: LoraOptions, smallest: int) -> None:
    """Refuses a rank that a weight does not have.

    Args:
        options: of the method.
        smallest: the smallest side of the weights.

    Raises:
        ConfigError: says which ranks there are.
    """
    most = smallest - (options.kind == "osf")  # something must be left to be preserved
    if options.kind in BOUNDED and options.rank > most:
        raise ConfigError(
            f"lora.rank is {options.rank}, but lora.kind {options.kind} begins with singular directions of weights, of"
            f" which the smallest has {smallest}",
            f"set lora.rank to {most} or less",
        )
