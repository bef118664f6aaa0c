"""The stages that measure what of a model must not be forgotten."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from adapt.config import what
from adapt.console import log
from adapt.errors import ConfigError
from adapt.model.families import check_units
from adapt.model.size import model_size
from adapt.runner import Outcome, Stage
from adapt.stages.base import START, Inputs, made_by
from adapt.stages.training import Training, cost_of

About = Literal["general", "domain"]
TEXT = "text"
"""An input, and the beginning of others' names: what importance is measured on."""
PREVIOUS = "previous"
"""An input: the importance that a new one is added to."""
FREE_SHARE = 0.5
"""Of the parameters in unprotected embeddings, above which there is a warning."""
SHOWN = 3
"""Warnings that are logged; all are in the record of the sequence."""


class Importances(Training):
    """How important each unit is for what a model knows (arXiv 2302.03241, sections 4.1 and 4.3)."""

    def general_importance(self, texts: Sequence[Stage]) -> Stage | None:
        """For general knowledge, read off the model to begin with on what it learns first; None where not wanted.

        Args:
            texts: prepared, of one source each.

        Raises:
            ConfigError: the corpus is streamed.
            ModelError: the units of the model are not known.
        """
        config, das = self.config, self.config.das
        if not self._masks():
            return None
        check_units(self.pretrained.model)
        if das.general_importance == "none":
            return None
        if config.corpus.streaming:
            raise ConfigError(
                "corpus.streaming is set, but importance is measured on prepared text",
                "remove it, or set das.general_importance to none",
            )
        views = {
            **self._sample(),
            "injected_dropout": das.injected_dropout,
            "attention_dropout": config.model.attention_dropout,
            "causal": config.objective.kind == "causal",
        }
        identity = {"about": das.general_importance, **(views if das.general_importance == "kl" else {})}
        named = {f"{TEXT} {number}" if number > 1 else TEXT: text for number, text in enumerate(texts, start=1)}
        return self._importance("general", identity, {**named, **self._started()})

    def domain_importance(self, text: Stage, training: Stage, previous: Stage | None) -> Stage | None:
        """For a domain, read off the model that has just learnt it, and all before; None where not wanted."""
        if not self._masks():
            return None
        identity = {
            "about": "domain",
            **self._sample(),
            "embeddings": self.config.das.embeddings,
            "objective": what(self.config.objective),
        }
        before = {PREVIOUS: previous} if previous else {}
        return self._importance("domain", identity, {TEXT: text, START: training, **before})

    def unprotected(self) -> list[str]:
        """A warning where most of the model is out of the masks' reach."""
        das, size = self.config.das, model_size(self.pretrained.model)
        if size is None or not self._masks() or das.soft_mask == "none" or das.embeddings != "free":
            return []
        share = size.embedding_parameters / size.parameters
        text = f"{share:.0%} of the parameters are embeddings, which das.embeddings free leaves unprotected"
        return [f"{text}: try frequency"] if share > FREE_SHARE else []

    def _masks(self) -> bool:
        config = self.config
        return config.method.kind == "das" and (config.das.soft_mask != "none" or config.das.contrast_weight > 0)

    def _sample(self) -> dict[str, Any]:
        """What is measured on, and together."""
        das = self.config.das
        return {
            "sequences": das.importance_sequences,
            "batch": das.importance_batch,
            "granularity": das.granularity,
            "sequence_length": self.config.training.sequence_length,
        }

    def _importance(self, about: About, identity: dict[str, Any], inputs: dict[str, Stage]) -> Stage:
        config = self.config
        identity |= {
            "normalize": config.das.normalize,
            "model": None if START in inputs else self._model_digest(),
            "seed": config.seed,
        }

        def run(folder: Path, done: Inputs) -> Outcome:
            return self._measure_importance(about, folder, done)

        return Stage("importance", config.name, identity, run, inputs)

    def _measure_importance(self, about: About, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.runtime import await_resources, connect
        from adapt.train.importance import Measuring, measure_importance, plasticity_under, saturated

        if about == "general":  # before anything is trained
            for each in self.unprotected():
                log(f"warning: {each}")
        connect(self.config.resources)
        await_resources(self.config.resources)
        start = made_by(inputs[START], self.pretrained) if START in inputs else self.pretrained
        previous = str(inputs[PREVIOUS].path) if PREVIOUS in inputs else None
        texts = tuple(str(record.path) for name, record in inputs.items() if name.startswith(TEXT))
        metrics = measure_importance(Measuring(self.config, start, texts, previous, about), folder)
        left = plasticity_under(self.config.das, metrics["plasticity"])
        for kind, layers in left.items():
            log(f"plasticity left, {kind} units by layer: {' '.join(f'{each:.2f}' for each in layers)}")
        for warning in islice(saturated(self.config.das, left), SHOWN):
            log(f"warning: {warning}")
        return Outcome(metrics, cost_of(metrics["device_seconds"], self.config.resources.price_per_device_hour))
