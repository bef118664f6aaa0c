"""Several prepared corpora as one, to measure on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.runner import Done, Outcome, Stage
from adapt.stage.text.prepare import Prepared


@dataclass(frozen=True, eq=False)
class Gather(Stage[Prepared]):
    """The held-out text of some sources side by side."""

    kind = "prepare"
    version = 2  # as `Prepare`

    name: str
    sources: Mapping[str, Stage[Prepared]]

    def what(self) -> Mapping[str, Any]:
        """The names, in their order."""
        return {"sources": list(self.sources)}

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        """Links the shards and sums what was counted."""
        from adapt.corpus.shards.gather import gather

        return Outcome(Prepared(**gather([done[source].record for source in self.sources.values()], folder)))
