"""Stage `importance`: measures how much every unit of a model matters for what it knows, on some rows of a corpus.

Ray tasks measure batches of rows on the cluster's devices, and the stage adds up what they found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config
from adapt.method.measurement import needs_as_training
from adapt.model.locate import Pretrained
from adapt.model.size import model_size
from adapt.model.start import Start
from adapt.objective.table import objective_what
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import cost_of
from adapt.terminal.console import log

if TYPE_CHECKING:
    import torch

    from adapt.method.das.criteria import Sums
    from adapt.method.das.method import DasOptions
    from adapt.train.over_rows import Share


About = Literal["general", "domain"]
LEAST_PLASTICITY = 0.1
"""Below this mean of 1 - importance a layer hardly learns any more, and a warning says so."""
FREE_SHARE = 0.5
"""Above this share of the parameters in unprotected embeddings, the stage warns."""
SHOWN = 3
"""Warnings that are logged; all are in the record of the sequence."""


@dataclass(frozen=True)
class ImportanceMeasured:
    """What was measured. The importance itself is in `importance.safetensors`."""

    rows: int
    groups: int
    """Groups of rows, each with one gradient."""
    tokens: int
    """Tokens of text that were read."""
    device_seconds: float
    plasticity: dict[str, list[float]]
    """The mean of 1 - importance by kind of unit and layer."""
    plasticity_own: dict[str, list[float]]
    """The mean of 1 - importance as measured here alone, by kind of unit and layer."""
    least_plasticity: float
    embeddings_share: float | None = None
    """Share of the model's parameters that are embeddings, where it is known."""


@dataclass(frozen=True, eq=False)
class MeasureImportance(Stage[ImportanceMeasured]):
    """How important each unit is for what a model knows (arXiv 2302.03241, sections 4.1 and 4.3)."""

    kind = "importance"

    name: str
    config: Config
    options: DasOptions
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that importance is measured on."""
    previous: Stage[ImportanceMeasured] | None
    """The importance that the new one is added to."""
    about: About
    """What the model knew before the first domain, as `das.general_importance` says, or the domain of the text."""

    def what(self) -> Mapping[str, Any]:
        """What is measured, on which sample, and how sizes become importance."""
        config, das = self.config, self.options
        sample = {
            "sequences": das.importance_sequences,
            "batch": das.importance_batch,
            "granularity": das.granularity,
            "sequence_length": config.training.sequence_length,
        }
        views = {
            **sample,
            "injected_dropout": das.injected_dropout,
            "attention_dropout": config.model.attention_dropout,
            "causal": config.objective.kind == "causal",
        }
        general = {"about": das.general_importance, **(views if das.general_importance == "kl" else {})}
        domain = {"about": "domain", **sample, "embeddings": das.embeddings, "objective": objective_what(config)}
        about: dict[str, Any] = dict(general if self.about == "general" else domain)
        if about["about"] != "random" and das.importance != "gate":
            about = {**(about if das.importance != "magnitude" else {}), "importance": das.importance}
        return {
            **about,
            "normalize": das.normalize,
            "model": self.start.digest,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers."""
        return needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[ImportanceMeasured]:
        """Measures on the cluster's devices."""
        from adapt.method.das.unit_sizes import measure_importance
        from adapt.ray.runtime import await_resources, connect

        config, das = self.config, self.options
        size = model_size(self.start.pretrained.model)
        share = size.embedding_parameters / size.parameters if size else None
        for warning in unprotected(das, share) if self.about == "general" else ():  # before anything is trained
            log(f"warning: {warning}")
        connect(config.resources)
        await_resources(config.resources)
        previous = str(done[self.previous].path) if self.previous else None
        texts = tuple(str(done[text].path) for text in self.texts)
        measuring = Measuring(config, das, self.start.made(done), texts, previous, self.about)
        result = ImportanceMeasured(**measure_importance(measuring, folder), embeddings_share=share)
        left = plasticity_under(das, result.plasticity)
        for kind, layers in left.items():
            log(f"plasticity left, {kind} units by layer: {' '.join(f'{plasticity:.2f}' for plasticity in layers)}")
        for warning in islice(saturated(das, left), SHOWN):
            log(f"warning: {warning}")
        return Outcome(result, cost_of(result.device_seconds, config.resources.price_per_device_hour))


@dataclass(frozen=True)
class Measuring:
    """What is to be measured."""

    config: Config
    options: DasOptions
    pretrained: Pretrained
    """The model."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    previous: str | None
    """Folder of the importance so far."""
    about: About


def measure_share(measuring: Measuring, device: torch.device, precision: str, share: Share) -> Sums:
    """One device's share of the batches. A Ray task imports this module before it hides GPUs, so without torch."""
    from adapt.method.das.unit_sizes import sizes_of_share

    return sizes_of_share(measuring, device, precision, share)


def plasticity_under(das: DasOptions, measured: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The plasticity of a record, as training has it under `das.plasticity_floor`; none where nothing is masked."""
    if das.soft_mask == "none":
        return {}
    return {kind: [max(plasticity, das.plasticity_floor) for plasticity in layers] for kind, layers in measured.items()}


def saturated(das: DasOptions, left: Mapping[str, list[float]]) -> Iterator[str]:
    """A warning for every layer and kind of unit that hardly learns any more; Adam undoes masks of gradients."""
    for kind, layers in left.items() if das.soft_mask == "update" else ():
        for number, plasticity in enumerate(layers):
            if plasticity < LEAST_PLASTICITY:
                yield (
                    f"layer {number}: {kind} units make {plasticity:.1%} of a step on average (1 - importance), so the "
                    "next domains hardly change them; das.plasticity_floor keeps them free"
                )


def unprotected(das: DasOptions, embeddings_share: float | None) -> list[str]:
    """A warning where most of the model is out of the masks' reach."""
    if embeddings_share is None or das.soft_mask == "none" or das.embeddings != "free":
        return []
    text = f"{embeddings_share:.0%} of the parameters are embeddings, which das.embeddings free leaves unprotected"
    return [f"{text}: try frequency"] if embeddings_share > FREE_SHARE else []
