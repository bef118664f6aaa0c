"""Stage `embedder`: what an embedder learns of some texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import ResourcesConfig
from adapt.runner import Done, Outcome, Stage
from adapt.stage.selecting.embedding import Embedding, PoolTexts, StageTexts


@dataclass(frozen=True)
class LearntEmbedder:
    """How well an embedder has learnt."""

    figures: dict[str, float]
    """Texts that were learnt from, words that are known; of `vampire`, epochs, and the topics' NPMI."""


@dataclass(frozen=True, eq=False)
class LearnEmbedder(Stage[LearntEmbedder]):
    """An embedder, learnt from samples of the texts that it will compare."""

    kind = "embedder"
    version = 2  # VAMPIRE's background counts, and its steps draw otherwise

    name: str
    embedding: Embedding
    texts: tuple[PoolTexts | StageTexts, ...]
    resources: ResourcesConfig

    def what(self) -> Mapping[str, Any]:
        """The embedder, and how the texts are read."""
        return {**self.embedding.what(), "texts": [texts.what() for texts in self.texts]}

    def run(self, folder: Path, done: Done) -> Outcome[LearntEmbedder]:
        """Learns in one task of the cluster, and on its workers where the embedder trains."""
        from adapt.embed.learn import learn_embedder
        from adapt.ray.runtime import connect

        connect(self.resources)
        sources = [texts.source(done) for texts in self.texts]
        figures = learn_embedder(self.embedding.made(done), sources, folder, self.resources)
        return Outcome(LearntEmbedder(figures))
