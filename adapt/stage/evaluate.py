"""Stage `evaluate`: one model's loss on held-out text. All models are measured on the same documents and masks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.config import Config, what
from adapt.evaluate.results import TextLoss
from adapt.model.start import Start
from adapt.objective.known import objective_what
from adapt.preflight import check_model
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import load_record
from adapt.stage.context import Context
from adapt.stage.text.prepare import Prepared
from adapt.train.capacity.needs import task_needs


@dataclass(frozen=True)
class Evaluated:
    """What was measured. The losses of documents are in `losses.json`, guesses of hidden words in `examples.json`."""

    texts: dict[str, TextLoss]
    """The losses on each corpus, by its name."""


@dataclass(frozen=True, eq=False)
class Evaluate(Stage[Evaluated]):
    """A model on the held-out text of some corpora."""

    kind = "evaluate"

    name: str
    config: Config
    start: Start
    """The model."""
    corpora: Mapping[str, Stage[Prepared]]
    """The corpora to measure on, by name. The words to guess are taken from the first one."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """The domain that a corpus is of, by the corpus's name, where the model may have parts for it."""

    @classmethod
    def of(
        cls,
        context: Context,
        label: str,
        corpora: Mapping[str, Stage[Prepared]],
        domains: Mapping[str, str] | None = None,
    ) -> "Evaluate":
        """The model that a context begins with.

        Args:
            context: of the job.
            label: says in the folder's name which model it is.
            corpora: to measure on.
            domains: see above.
        """
        return cls(f"{context.config.name}-{label}", context.config, context.start, corpora, domains or {})

    def what(self) -> Mapping[str, Any]:
        """Model, sample and masks."""
        config = self.config
        return {
            "model": self.start.digest,
            "evaluation": what(config.evaluation),
            "objective": objective_what(config),
            **({"domains": dict(self.domains)} if self.domains else {}),
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on one device."""
        return task_needs(self.config.resources)

    def refuse_early(self) -> None:
        """Looks at the model."""
        check_model(self.start.pretrained, self.config.objective.kind == "causal")

    def run(self, folder: Path, done: Done) -> Outcome[Evaluated]:
        """Measures on a device of the cluster."""
        from adapt.evaluate.measure import Measurement, measure
        from adapt.evaluate.overlap import overlaps, trained_on
        from adapt.ray.runtime import connect

        connect(self.config.resources)
        model, training = self.start.made(done), self.start.training
        corpora = {name: done[text].path for name, text in self.corpora.items()}
        maker = done[training].record if training else load_record(model.model)
        overlap = overlaps(corpora, trained_on(maker))
        places = {name: str(path) for name, path in corpora.items()}
        return Outcome(Evaluated(measure(Measurement(self.config, model, places, overlap, self.domains), folder)))
