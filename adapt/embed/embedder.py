"""Embedders give every text a vector, so that texts can be compared by the cosine of their vectors.

`Embedder` is the base class, and EMBEDDERS has the class of each kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from adapt.config import what
from adapt.config.kinds import Kinds
from adapt.model.locate import Pretrained

if TYPE_CHECKING:
    import numpy as np


class EmbeddedTexts(NamedTuple):
    """The vectors of some texts."""

    vectors: "np.ndarray"
    """float32 [n, d]."""
    seen: int
    """Tokens, or texts, that were looked at."""
    unknown: int
    """Those among them that the embedder does not know: tokens that stand for unknown text, texts without a known word.
    """


class Embedder(ABC):
    """A way of embedding. The class loads nothing; `load` does, in the process that embeds.

    Args:
        options: an instance of its `Options`.
        seed: of the job.
        pretrained: the model, where `reads_model`.
    """

    Options: ClassVar[type[Any]]
    """A frozen dataclass: what can be set. Fields made with `how` do not change the vectors."""
    reads_model: ClassVar[bool] = False
    """Whether it needs a model. Its options then have a `path` (null: the job's own model)."""
    learns: ClassVar[bool] = False
    """Whether it learns from texts before it can embed. Its options then have `sample_documents`."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose version decides the vectors; see `adapt.runner.key`."""

    def __init__(self, options: Any, seed: int, pretrained: Pretrained | None = None) -> None:
        self.options, self.seed, self.pretrained = options, seed, pretrained

    def what(self) -> dict[str, Any]:
        """The options that determine the vectors, and the seed where anything is learnt."""
        return {**what(self.options), **({"seed": self.seed} if self.learns else {})}

    def check(self) -> None:  # noqa: B027 (most embedders have nothing to refuse)
        """Refuses, before anything is computed, what cannot work here.

        Raises:
            ConfigError: a package is missing.
        """

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Learns from a sample of the texts that will be compared, and writes what was learnt.

        Runs in one task of the cluster. A run that died is called again with the same sample and folder. What it logs
        to `metrics.jsonl` (`adapt.train.metric_trackers.File`) is shown.

        Args:
            texts: the sample.
            folder: for the files.

        Returns:
            Figures that say how well it was learnt.

        Raises:
            DataError: there is too little to learn from.
        """
        return {}

    @abstractmethod
    def load(self, folder: Path | None) -> None:
        """Makes ready to embed, on the GPU that this process may use, or the CPU.

        Args:
            folder: where `learn` has written; None for embedders that do not learn.
        """

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """The vector of each text. It depends on that text alone, to within rounding."""


EMBEDDERS: Kinds[type[Embedder]] = Kinds(
    "select.embedder",
    {
        "tfidf": "adapt.embed.tfidf:Tfidf",
        "static": "adapt.embed.static:StaticMean",
        "transformer": "adapt.embed.transformer:TransformerMean",
        "vampire": "adapt.embed.vampire:Vampire",
    },
    base="adapt.embed.embedder:Embedder",
)
"""The embedders, by the names that `select.embedder` calls them by."""


def embedder_of(kind: str, options: dict[str, Any], seed: int, pretrained: Pretrained | None = None) -> Embedder:
    """An embedder with its options.

    Raises:
        ConfigError: there is none of this name, it is no embedder, or an option is not known or of the wrong type.
    """
    return EMBEDDERS.load(kind)(EMBEDDERS.read(kind, options), seed, pretrained)
