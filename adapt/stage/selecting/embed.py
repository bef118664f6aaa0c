"""Stage `embed`: the vectors of texts."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import ResourcesConfig
from adapt.runner import Done, Outcome, Stage
from adapt.runner.key import canonical
from adapt.stage.selecting.embedding import Embedding, PoolTexts, StageTexts
from adapt.stage.selecting.learn_embedder import LearnEmbedder

if TYPE_CHECKING:
    from adapt.embed.run import StoredType


@dataclass(frozen=True)
class Embedded:
    """What was embedded. The vectors are in `vectors-*.parquet`; see `adapt.embed.written`."""

    documents: int
    dimension: int
    unknown_share: float
    """Share of the tokens (of texts, where words are counted) that the embedder does not know."""
    space: str
    """What made the vectors: those of the same space can be compared."""


@dataclass(frozen=True, eq=False)
class Embed(Stage[Embedded]):
    """The vectors of some texts."""

    kind = "embed"
    version = 2  # ids count records

    name: str
    embedding: Embedding
    learnt: LearnEmbedder | None
    """What the embedder has learnt, where it learns."""
    texts: PoolTexts | StageTexts
    resources: ResourcesConfig
    stored: "StoredType" = "float16"

    def what(self) -> Mapping[str, Any]:
        """The embedder, how the texts are read, and the type of the numbers."""
        return {**self.embedding.what(), "texts": self.texts.what(), "stored": self.stored}

    @property
    def space(self) -> str:
        """See `Embedded`."""
        made_by = {name: stage.key for name, stage in self.inputs.items() if name.startswith(("embedding.", "learnt"))}
        identity = canonical({**self.embedding.what(), "made_by": made_by})
        return f"{self.embedding.kind}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def run(self, folder: Path, done: Done) -> Outcome[Embedded]:
        """Embeds on the cluster; goes on where a run that died has ended."""
        from adapt.embed.run import embed_texts
        from adapt.ray.runtime import connect

        connect(self.resources)
        learnt = done[self.learnt].path if self.learnt else None
        embedder, source = self.embedding.made(done), self.texts.source(done)
        found = embed_texts(source, embedder, learnt, folder, self.resources, self.stored)
        return Outcome(Embedded(found.documents, found.dimension, found.unknown_share, self.space))
