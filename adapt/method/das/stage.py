"""Stage `importance` measures how much each unit of a model matters for the model's knowledge, on rows of a corpus.

Ray tasks measure batches of rows on the cluster's devices, and the stage adds up their results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config
from adapt.method.measurement import needs_as_training, objective_of_sums
from adapt.model.locate import Pretrained
from adapt.model.size import model_size
from adapt.model.start import Start
from adapt.ray.runtime import await_resources, connect
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import cost_of
from adapt.terminal.console import log

if TYPE_CHECKING:
    from adapt.method.das.method import DasOptions


About = Literal["general", "domain"]
LEAST_PLASTICITY = 0.1
"""The stage warns about layers whose mean of 1 - importance is below this, because they hardly learn any more."""
FREE_SHARE = 0.5
"""The stage warns if unprotected embeddings are more than this share of the parameters."""
SHOWN = 3
"""Maximum number of warnings that the stage logs. The record of the sequence of domains has all warnings."""


@dataclass(frozen=True)
class ImportanceMeasured:
    """Record of stage `importance`. The importance itself is in `importance.safetensors`."""

    rows: int
    groups: int
    """Number of groups of rows (batches or single rows). One gradient was computed per group."""
    tokens: int
    """Number of text tokens that were read."""
    device_seconds: float
    plasticity: dict[str, list[float]]
    """Mean of 1 - importance for each kind of unit and layer, after the importance of earlier domains was merged in."""
    plasticity_own: dict[str, list[float]]
    """Mean of 1 - importance for each kind of unit and layer, before importance of earlier domains was merged in."""
    least_plasticity: float
    embeddings_share: float | None = None
    """Share of the model's parameters that are embeddings, or None if it is not known."""


@dataclass(frozen=True, eq=False)
class MeasureImportance(Stage[ImportanceMeasured]):
    """Measures how important each attention head and neuron is for a model's knowledge (arXiv 2302.03241, sect. 4)."""

    kind = "importance"
    device_time = "own"

    name: str
    config: Config
    options: DasOptions
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts for measuring importance."""
    previous: Stage[ImportanceMeasured] | None
    """The stage that measured importance for earlier domains, which is merged with the new importance. May be None."""
    about: About
    """Whether importance is measured for `general` knowledge (`das.general_importance`) or for the texts' `domain`."""

    def what(self) -> Mapping[str, Any]:
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
        domain = {"about": "domain", **sample, "embeddings": das.embeddings}
        about: dict[str, Any] = dict(
            general if self.about == "general" else {**domain, "objective": objective_of_sums(config)}
        )
        if about["about"] != "random" and das.importance != "gate":
            about = {**(about if das.importance != "magnitude" else {}), "importance": das.importance}
        return {
            **about,
            "normalize": das.normalize,
            "model": self.start.digest,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        return needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[ImportanceMeasured]:
        from adapt.method.das.unit_sizes import measure_importance

        config, das = self.config, self.options
        size = model_size(self.start.pretrained.model)
        share = size.embedding_parameters / size.parameters if size else None
        for warning in unprotected(das, share) if self.about == "general" else ():  # before the first training run
            log(f"warning: {warning}")
        connect(config.resources)
        await_resources(config.resources)
        previous = str(done[self.previous].path) if self.previous else None
        texts = tuple(str(done[text].path) for text in self.texts)
        measuring = Measuring(config, das, self.start.made(done), texts, previous, self.about)
        result = replace(measure_importance(measuring, folder), embeddings_share=share)
        left = plasticity_under(das, result.plasticity)
        for kind, layers in left.items():
            by_layer = " ".join(f"{plasticity:.2f}" for plasticity in layers)
            log(f"remaining plasticity (1 - importance) of {kind} units, by layer: {by_layer}")
        for warning in islice(saturated(das, left), SHOWN):
            log(f"warning: {warning}")
        return Outcome(result, cost_of(result.device_seconds, config.resources.price_per_device_hour))


@dataclass(frozen=True)
class Measuring:
    """The input of the Ray tasks that measure importance."""

    config: Config
    options: DasOptions
    pretrained: Pretrained
    """The model that is measured."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    previous: str | None
    """Folder with the earlier importance; None if there is none."""
    about: About


def plasticity_under(das: DasOptions, measured: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Returns the means of 1 - importance, raised to at least `das.plasticity_floor`. {} if no units are masked."""
    if das.soft_mask == "none":
        return {}
    return {kind: [max(plasticity, das.plasticity_floor) for plasticity in layers] for kind, layers in measured.items()}


def saturated(das: DasOptions, left: Mapping[str, list[float]]) -> Iterator[str]:
    """Yields a warning for each layer and kind of unit that hardly learns any more, if updates are masked."""
    for kind, layers in left.items() if das.soft_mask == "update" else ():
        for number, plasticity in enumerate(layers):
            if plasticity < LEAST_PLASTICITY:
                yield (
                    f"layer {number}: {kind} units move {plasticity:.1%} as far as unmasked ones on average (1 - "
                    "importance), so the next domains hardly change them; set das.plasticity_floor to free them"
                )


def unprotected(das: DasOptions, embeddings_share: float | None) -> list[str]:
    """Returns a list with a warning if more than `FREE_SHARE` of the parameters are unprotected embeddings."""
    if embeddings_share is None or das.soft_mask == "none" or das.embeddings != "free":
        return []
    text = f"{embeddings_share:.0%} of the parameters are embeddings, which das.embeddings free leaves unprotected"
    return [f"{text}: try das.embeddings frequency"] if embeddings_share > FREE_SHARE else []
