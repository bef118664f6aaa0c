"""Stage `similarity`: how near domains are (Don't Stop Pretraining, section 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.evaluate.results import Similar
from adapt.runner import Done, Outcome, Stage
from adapt.runner.packages import deciding
from adapt.stage.context import Tokens
from adapt.stage.evaluate import Evaluate
from adapt.stage.text.prepare import Prepared


@dataclass(frozen=True, eq=False)
class Similarity(Stage[Similar]):
    """Domains, compared by their words, and by the losses of a model of each where there are models."""

    kind = "similarity"

    name: str
    corpora: Mapping[str, Stage[Prepared]]
    """The text of each domain, by its name."""
    evaluations: Mapping[str, Evaluate]
    """For each domain, the evaluation of its model on all domains, in the same order; empty without models."""
    tokens: Tokens
    """Those of the corpora."""
    max_documents: int
    """At most this many documents of each domain are looked at."""

    def what(self) -> Mapping[str, Any]:
        """Names, in their order, and the size of the samples."""
        return {
            "max_documents": self.max_documents,
            "domains": list(self.corpora),
            **deciding("scikit-learn"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Similar]:
        """Writes the matrices and their picture."""
        from adapt.evaluate.domains import compare_domains

        corpora = {name: done[text].path for name, text in self.corpora.items()}
        evaluations = [done[evaluation].path for evaluation in self.evaluations.values()]
        return Outcome(
            compare_domains(corpora, evaluations, self.tokens.made(done).pretrained, self.max_documents, folder)
        )
