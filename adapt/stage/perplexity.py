"""Stage `perplexity`: a model's pseudo-perplexity, or a causal one's perplexity, on held-out text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.stage.context import Context
from adapt.stage.neighbours import measured_model
from adapt.stage.text.prepare import Prepared


@dataclass(frozen=True)
class Perplexities:
    """What was measured."""

    texts: dict[str, float | None]
    """By corpus; None where it has no held-out text."""


@dataclass(frozen=True, eq=False)
class Perplexity(Stage[Perplexities]):
    """A model on the first held-out documents of some corpora."""

    kind = "perplexity"

    name: str
    config: Config
    start: Start
    """The model."""
    corpora: Mapping[str, Stage[Prepared]]

    @classmethod
    def of(cls, context: Context, label: str, corpora: Mapping[str, Stage[Prepared]]) -> "Perplexity":
        """The model that a context begins with; the label says in the folder's name which it is."""
        return cls(f"{context.config.name}-{label}", context.config, context.start, corpora)

    def what(self) -> Mapping[str, Any]:
        """Model, and which documents."""
        config = self.config
        return {
            **measured_model(config, self.start),
            "documents": config.comparison.pseudo_perplexity_documents,
            "max_tokens": config.evaluation.max_tokens,
        }

    def run(self, folder: Path, done: Done) -> Outcome[Perplexities]:
        """Measures on a device of the cluster."""
        from adapt.evaluate.pseudo import perplexities
        from adapt.ray.runtime import connect

        connect(self.config.resources)
        corpora = {name: done[text].path for name, text in self.corpora.items()}
        return Outcome(Perplexities(perplexities(self.config, self.start.made(done), corpora)))
