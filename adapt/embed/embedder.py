"""Defines embedders, which compute a vector per text, so that texts can be compared by the cosine of their vectors.

`Embedder` is the base class. EMBEDDERS maps the name of each embedder to its class.
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
    """Vectors of texts, and counts that show how much of the texts the embedder knows."""

    vectors: "np.ndarray"
    """Vectors of the n texts, float32 [n, d]."""
    seen: int
    """Total number of tokens of the texts; for embedders that count words, the number of texts."""
    unknown: int
    """Number of tokens that the embedder does not know; for embedders that count words, the number of texts without a
    known word."""


class Embedder(ABC):
    """Base class of embedders.

    The constructor loads nothing. The process that embeds calls `load`, which loads models and files.

    Args:
        options: an instance of the class's `Options`.
        seed: seed of the job.
        pretrained: the model that the embedder needs if `reads_model` is True; otherwise None.
    """

    Options: ClassVar[type[Any]]
    """Frozen dataclass of the embedder's options. Fields that are declared with `adapt.config.fields.how`, such as
    batch sizes, do not change the vectors."""
    reads_model: ClassVar[bool] = False
    """Whether the embedder needs a model. Its options then have a field `path` (null: the job's model)."""
    learns: ClassVar[bool] = False
    """Whether the embedder learns from texts before it can embed. Its options then have a field `sample_documents`."""
    batch_field: ClassVar[str | None] = None
    """Configuration field with the number of texts per pass, which users lower if memory runs out."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Names of the packages whose versions affect the vectors; see `adapt.runner.stage.deciding`."""

    def __init__(self, options: Any, seed: int, pretrained: Pretrained | None = None) -> None:
        self.options, self.seed, self.pretrained = options, seed, pretrained

    def what(self) -> dict[str, Any]:
        """Returns the options that determine the vectors, and the seed if the embedder learns."""
        return {**what(self.options), **({"seed": self.seed} if self.learns else {})}

    def check(self) -> None:  # noqa: B027 (most embedders have nothing to check)
        """Checks, before the job starts, that the embedder can work on this machine.

        Raises:
            ConfigError: a required package is missing.
        """

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Learns from a sample of the texts that will be compared, and writes the result to `folder`.

        This method runs in one task of the cluster. After an interruption, it is called again with the same sample and
        folder. Metrics that `learn` logs to `metrics.jsonl` (`adapt.train.metric_trackers.File`) are shown to the user.

        Args:
            texts: the sample of texts.
            folder: folder for the files.

        Returns:
            Metrics of the learned embedder's quality.

        Raises:
            DataError: the sample is too small.
        """
        return {}

    @abstractmethod
    def load(self, folder: Path | None) -> None:
        """Loads the models and files that `embed` needs, on this process's GPU if it has one, else on the CPU.

        Args:
            folder: folder that `learn` wrote; None for embedders that do not learn.
        """

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns one vector per text. Apart from rounding errors, a vector depends only on its own text."""


EMBEDDERS: Kinds[type[Embedder]] = Kinds(
    "select.embedder",
    {
        "tfidf": "adapt.embed.bags:Tfidf",
        "static": "adapt.embed.transformer:StaticMean",
        "transformer": "adapt.embed.transformer:TransformerMean",
        "vampire": "adapt.embed.bags:Vampire",
    },
    base="adapt.embed.embedder:Embedder",
)
"""The classes of the built-in embedders, keyed by their names in `select.embedder`."""


def embedder_of(kind: str, options: dict[str, Any], seed: int, pretrained: Pretrained | None = None) -> Embedder:
    """Creates an embedder with its options.

    Raises:
        ConfigError: no embedder has this name, the class is not an embedder, or an option is unknown or of the wrong
            type.
    """
    return EMBEDDERS.load(kind)(EMBEDDERS.read(kind, options), seed, pretrained)
