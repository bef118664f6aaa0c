"""The stages that measure one model: its loss on held-out text, its perplexity, and its features."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapt.config import what
from adapt.runner import Outcome, Stage
from adapt.runner.packages import deciding
from adapt.runner.record import load_record
from adapt.stages.base import Inputs, made_by
from adapt.stages.tasks import Tasks


class Measuring(Tasks):
    """A model on text. All are measured on the same documents and masks."""

    def evaluated(self, label: str, corpora: Mapping[str, Stage], training: Stage | None) -> Stage:
        """The model before training (None) or after it, on the held-out text of some corpora."""
        config = self.config
        identity = {
            "model": None if training else self._model_digest(),
            "evaluation": what(config.evaluation),
            "objective": what(config.objective),
        }
        inputs = {**corpora, **({"training": training} if training else {})}
        return Stage(
            "evaluate", f"{config.name}-{label}", identity, lambda folder, done: self._evaluate(folder, done), inputs
        )

    def neighbours(self, label: str, tasks: Mapping[str, Stage]) -> Stage:
        """How often nearest neighbours by the model's features have the same label."""
        identity = {**self._measured(), "neighbours": self.config.comparison.neighbours, **deciding("scikit-learn")}
        inputs = {**tasks, **self._started()}
        name = f"{self.config.name}-{label}"
        return Stage("neighbours", name, identity, lambda _, done: self._classify(done), inputs)

    def perplexity(self, label: str, corpora: Mapping[str, Stage]) -> Stage:
        """The model's pseudo-perplexity, or a causal one's perplexity, on held-out text."""
        identity = {
            **self._measured(),
            "documents": self.config.comparison.pseudo_perplexity_documents,
            "max_tokens": self.config.evaluation.max_tokens,
        }
        inputs = {**corpora, **self._started()}
        name = f"{self.config.name}-{label}"
        return Stage("perplexity", name, identity, lambda _, done: self._perplexity(done), inputs)

    def _measured(self) -> dict[str, Any]:
        return {
            "model": self._model_digest(),
            "causal": self.config.objective.kind == "causal",
            "sequence_length": self.config.evaluation.sequence_length,
        }

    def _general(self) -> dict[str, Stage]:
        general = self.general()
        return {"general": general} if general else {}

    def _evaluate(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.measure import Measurement, measure
        from adapt.evaluate.overlap import overlaps
        from adapt.runtime import connect

        connect(self.config.resources)
        model = made_by(inputs["training"], self.pretrained) if "training" in inputs else self.pretrained
        corpora = paths_of(inputs, "prepare")
        found = overlaps(corpora, inputs.get("training") or load_record(model.model))
        measurement = Measurement(self.config, model, {name: str(path) for name, path in corpora.items()})
        return Outcome({**measure(measurement, folder), **found})

    def _classify(self, inputs: Inputs) -> Outcome:
        from adapt.evaluate.embed import nearest_neighbours
        from adapt.runtime import connect

        connect(self.config.resources)
        return Outcome(nearest_neighbours(self.config, self._start_of(inputs), paths_of(inputs, "task")))

    def _perplexity(self, inputs: Inputs) -> Outcome:
        from adapt.evaluate.pseudo import perplexities
        from adapt.runtime import connect

        connect(self.config.resources)
        return Outcome(perplexities(self.config, self._start_of(inputs), paths_of(inputs, "prepare")))


def paths_of(inputs: Inputs, stage: str) -> dict[str, Path]:
    """Folders of the inputs of one kind, by name."""
    return {name: record.path for name, record in inputs.items() if record.stage == stage}
