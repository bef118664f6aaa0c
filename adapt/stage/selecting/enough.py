"""Stage `enough`: whether a pool has as many documents as neighbours are wanted, before they are embedded."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from adapt.runner import Done, Outcome, Stage
from adapt.stage.selecting.embedding import PoolTexts


@dataclass(frozen=True)
class Counted:
    """What was found."""

    documents: int
    """As many as were asked for: nobody has looked whether there are more."""


@dataclass(frozen=True, eq=False)
class CountEnough(Stage[Counted]):
    """Reads a pool until it has seen enough documents, which takes a moment, or to its end, which refuses it."""

    kind = "enough"

    name: str
    texts: PoolTexts
    wanted: int
    """Documents."""

    def what(self) -> Mapping[str, Any]:
        """How the pool is read, and how many documents are enough."""
        return {"texts": self.texts.what(), "wanted": self.wanted}

    def needs(self) -> Mapping[str, float]:
        """It takes one CPU."""
        return {"CPU": 1}

    def run(self, folder: Path, done: Done) -> Outcome[Counted]:
        """Reads.

        Raises:
            DataError: there are fewer documents, or as `adapt.embed.sources.PoolSource.check`.
        """
        from adapt.select.guards import guards
        from adapt.select.pool import Pool
        from adapt.select.vectors.nearby import check_enough

        source = self.texts.source(done)
        pool = Pool(source.manifest, source.corpus, guards(source.corpus, source.measured, []).sieve)
        found = sum(1 for _ in islice(pool, self.wanted))
        if found < self.wanted:
            source.check(pool.tally)
            check_enough(self.wanted, found)
        return Outcome(Counted(found))
