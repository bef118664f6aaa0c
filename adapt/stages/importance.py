"""The stages that measure what of a model must not be forgotten."""

from itertools import islice
from pathlib import Path
from typing import Any, Literal

from adapt.chain import Outcome, Stage
from adapt.config import what
from adapt.console import log
from adapt.errors import ConfigError
from adapt.stages.base import START, Inputs, made_by
from adapt.stages.training import Training

PREVIOUS = "previous"
"""An input: the importance that a new one is added to."""
SHOWN = 3
"""Warnings that are logged; all are in the record of the sequence."""


class Importances(Training):
    """How important each unit is for what a model knows (arXiv 2302.03241, sections 4.1 and 4.3)."""

    def general_importance(self, text: Stage) -> Stage | None:
        """For general knowledge, read off the model to begin with on the first domain's text; None where not wanted."""
        das = self.config.das
        if not self._masks() or das.general_importance == "none":
            return None
        if self.config.corpus.streaming:
            raise ConfigError(
                "corpus.streaming is set, but importance is measured on prepared text",
                "remove it, or set das.general_importance to none",
            )
        about = {"general": das.general_importance, "injected_dropout": das.injected_dropout}
        return self._importance("general", about, {"text": text, **self._started()})

    def domain_importance(self, text: Stage, training: Stage, previous: Stage | None) -> Stage | None:
        """For a domain, read off the model that has just learnt it, and all before; None where not wanted."""
        if not self._masks():
            return None
        before = {PREVIOUS: previous} if previous else {}
        return self._importance("domain", {}, {"text": text, START: training, **before})

    def _masks(self) -> bool:
        config = self.config
        return config.method.kind == "das" and (config.das.soft_mask != "none" or config.das.contrast_weight > 0)

    def _importance(self, about: Literal["general", "domain"], more: dict[str, Any], inputs: dict[str, Stage]) -> Stage:
        config, das = self.config, self.config.das
        identity = {
            "about": about,
            **more,
            "sequences": das.importance_sequences,
            "batch": das.importance_batch,
            "granularity": das.granularity,
            "normalize": das.normalize,
            "embeddings": das.embeddings,
            "model": None if START in inputs else self._model_digest(),
            "objective": what(config.objective),
            "sequence_length": config.training.sequence_length,
            "seed": config.seed,
        }

        def run(folder: Path, done: Inputs) -> Outcome:
            return self._measure_importance(about, folder, done)

        return Stage("importance", config.name, identity, run, inputs)

    def _measure_importance(self, about: Literal["general", "domain"], folder: Path, inputs: Inputs) -> Outcome:
        from adapt.runtime import connect
        from adapt.train.importance import Measuring, measure_importance, saturated, with_floor

        connect(self.config.resources)
        start = made_by(inputs[START], self.pretrained) if START in inputs else self.pretrained
        previous = str(inputs[PREVIOUS].path) if PREVIOUS in inputs else None
        metrics = measure_importance(Measuring(self.config, start, str(inputs["text"].path), previous, about), folder)
        for warning in islice(saturated(with_floor(metrics["plasticity"], self.config.das.plasticity_floor)), SHOWN):
            log(f"warning: {warning}")
        return Outcome(metrics, {"device_seconds": metrics["device_seconds"]})
