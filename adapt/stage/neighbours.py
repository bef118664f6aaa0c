"""Stage `neighbours`: how often nearest neighbours by a model's features have the same label."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.evaluate.results import TaskNeighbours
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.runner.packages import deciding
from adapt.stage.context import Context
from adapt.stage.task import PrepareTask


@dataclass(frozen=True)
class Voted:
    """What was measured."""

    tasks: dict[str, TaskNeighbours]
    """What was measured on each task, by its name."""


@dataclass(frozen=True, eq=False)
class Neighbours(Stage[Voted]):
    """A model's features, judged by labels that neighbours vote for."""

    kind = "neighbours"

    name: str
    config: Config
    start: Start
    """The model."""
    tasks: Mapping[str, PrepareTask]
    """With one label a text."""

    @classmethod
    def of(cls, context: Context, label: str, tasks: Mapping[str, PrepareTask]) -> "Neighbours":
        """The model that a context begins with; the label says in the folder's name which it is."""
        return cls(f"{context.config.name}-{label}", context.config, context.start, tasks)

    def what(self) -> Mapping[str, Any]:
        """Model, length of texts, and how many vote."""
        config = self.config
        return {
            **measured_model(config, self.start),
            "neighbours": config.comparison.neighbours,
            **deciding("scikit-learn"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Voted]:
        """Classifies the test texts on a device of the cluster."""
        from adapt.evaluate.embed import nearest_neighbours
        from adapt.ray.runtime import connect

        connect(self.config.resources)
        tasks = {name: done[task].path for name, task in self.tasks.items()}
        return Outcome(Voted(nearest_neighbours(self.config, self.start.made(done), tasks)))


def measured_model(config: Config, start: Start) -> dict[str, Any]:
    """For the keys of stages that read a model's features or probabilities."""
    return {
        "model": start.digest,
        "causal": config.objective.kind == "causal",
        "sequence_length": config.evaluation.sequence_length,
    }
