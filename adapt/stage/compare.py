"""Stage `compare`: several models side by side, on the same text (Don't Stop Pretraining, table 12)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.evaluate.results import ModelsCompared, Unit
from adapt.runner import Done, Outcome, Stage
from adapt.stage.evaluate import Evaluate
from adapt.stage.neighbours import Neighbours
from adapt.stage.perplexity import Perplexity


@dataclass(frozen=True)
class ModelMeasured:
    """What is measured of a model; None for what was not asked for."""

    losses: Evaluate
    neighbours: Neighbours | None = None
    perplexity: Perplexity | None = None


@dataclass(frozen=True, eq=False)
class Compare(Stage[ModelsCompared]):
    """Models by name, of which the first is what the others are compared to."""

    kind = "compare"

    name: str
    models: Mapping[str, ModelMeasured]
    """All measured on the same corpora, each in its own tokens."""
    bootstrap_samples: int
    unit: Unit = "token"
    """What losses are of: a byte of text where the models have different tokens."""

    @property
    def domains(self) -> list[str]:
        """The corpora that the models are measured on."""
        return list(next(iter(self.models.values())).losses.corpora)

    def what(self) -> Mapping[str, Any]:
        """Names, in their order, and how intervals are found."""
        return {
            "models": list(self.models),
            "domains": self.domains,
            "bootstrap_samples": self.bootstrap_samples,
            **({"unit": self.unit} if self.unit != "token" else {}),
        }

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[ModelsCompared]:
        """Writes the matrix and its picture.

        Raises:
            DataError: a domain has no held-out text.
        """
        from adapt.evaluate.matrix import compare_models

        losses = {name: done[model.losses] for name, model in self.models.items()}
        evaluations = {name: loss.path for name, loss in losses.items()}
        compared = compare_models(evaluations, self.domains, self.bootstrap_samples, folder, self.unit)
        overlap = {
            name: {domain: loss.result.texts[domain].overlap for domain in self.domains}
            for name, loss in losses.items()
        }
        return Outcome(replace(compared, overlap=overlap, **self._neighbours(done), **self._perplexity(done)))

    def _neighbours(self, done: Done) -> dict[str, Any]:
        votes = {name: done[model.neighbours].result for name, model in self.models.items() if model.neighbours}
        if not votes:
            return {}
        tasks = next(iter(votes.values())).tasks
        knn = {task: {name: vote.tasks[task].accuracy for name, vote in votes.items()} for task in tasks}
        return {"knn": knn, "knn_left_out": {task: each.left_out for task, each in tasks.items()}}

    def _perplexity(self, done: Done) -> dict[str, Any]:
        perplexities = {name: done[model.perplexity].result for name, model in self.models.items() if model.perplexity}
        if not perplexities:
            return {}
        by_domain = {
            domain: {name: each.texts[domain] for name, each in perplexities.items()} for domain in self.domains
        }
        return {"pseudo_perplexity": by_domain}
