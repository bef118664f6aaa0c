"""Stage `index`: the vectors of some texts, made ready to be searched."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import ResourcesConfig
from adapt.runner import Done, Outcome, Stage
from adapt.runner.packages import deciding
from adapt.stage.selecting.embed import Embed

if TYPE_CHECKING:
    from adapt.index.plan import IndexKind


@dataclass(frozen=True)
class Indexed:
    """What was built; see `adapt.index.search` for how it is asked."""

    vectors: int
    dimension: int
    parts: int
    index: str
    """The kind: flat, ivf, ivf_pq or hnsw."""
    lists: int
    space: str
    """What made the vectors."""


@dataclass(frozen=True, eq=False)
class BuildIndex(Stage[Indexed]):
    """An index of the vectors of some texts."""

    kind = "index"
    version = 2  # the mean of the vectors is taken from each

    name: str
    vectors: Embed
    index: "IndexKind | str"
    """Its kind; `auto` chooses by size and memory (`adapt.index.plan`)."""
    memory_gib: float
    """What a machine may use for it [GiB]; `auto` heeds it."""
    queries: int
    """How many will be asked, about; `auto` heeds it."""
    resources: ResourcesConfig

    def what(self) -> Mapping[str, Any]:
        """What decides its kind, and the library that builds it."""
        return {
            "index": self.index,
            "memory_gib": self.memory_gib,
            "queries": self.queries,
            **deciding("faiss-cpu"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Indexed]:
        """Builds the parts on the cluster, a task each."""
        from adapt.embed.indexed import build_on_cluster
        from adapt.ray.runtime import connect

        connect(self.resources)
        embedded = done[self.vectors]
        facts = build_on_cluster(
            embedded.path,
            folder,
            embedded.result.space,
            embedded.result.dimension,
            memory_bytes=int(self.memory_gib * 2**30),
            queries=self.queries,
            kind=self.index,
        )
        return Outcome(
            Indexed(facts.vectors, facts.dimension, len(facts.parts), facts.kind, facts.lists, facts.embedder)
        )
