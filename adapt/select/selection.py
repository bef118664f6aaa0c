"""Defines the base class of selections. A selection scores the documents of a pool, and the best ones are taken.

`Random` is the baseline that every other selection has to beat (RAND-TAPT, Don't Stop Pretraining section 5.3).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from adapt.config import what
from adapt.support.splitmix import mix

if TYPE_CHECKING:
    from adapt.config import Config
    from adapt.model.locate import Pretrained
    from adapt.select.pool import Document, Pool


Seen = TypeVar("Seen", covariant=True)
NEVER = float("-inf")
"""Score of a document that must not be taken, even if the budget is larger than the pool."""


@dataclass(frozen=True)
class NoOptions:
    """Empty options, for selections that have no options."""


VectorsOf = Literal["pool", "target"]
Offer = Literal["all", "more", "enough"]
"""Says which documents a selection scores. `all`: all permitted documents. `more`: only some documents; other documents
would also get a score if the limits of `Room` were higher. `enough`: all documents that the selection can score, even
if their number does not fill the budget."""


@dataclass(frozen=True)
class Room:
    """Limits on the best texts that are held in memory.

    The worst texts are discarded when the better texts reach both limits. A limit of None counts as reached.
    """

    documents: int | None = None
    characters: int | None = None
    """Total number of characters that the held texts must reach."""

    def is_over(self, documents: int, characters: int, worst: int) -> bool:
        """Returns whether the held texts reach the limits without the worst of them.

        Args:
            documents: number of held texts.
            characters: total characters of the held texts.
            worst: characters of the worst text.
        """
        enough = self.documents is None or documents > self.documents
        return enough and (self.characters is None or characters - worst >= self.characters)


@dataclass(frozen=True)
class Vectors:
    """Folders of the vectors that earlier stages have computed for pool and target, with the same embedder."""

    pool: Path
    """Folder of the pool's index (`adapt.index`). The index has the ids of the documents."""
    target: Path | None
    """Folder of the target's vectors (`adapt.embed.vector_files`). None if no selection needs them."""
    space: str
    """Name of the vector space that the vectors of pool and target belong to."""


class Inspection(Protocol[Seen]):
    """Interface of functions that inspect the documents of one part of the pool. Any process may call them."""

    def __call__(self, documents: "Iterator[Document]", hint: Any) -> "Iterator[Seen | None]":
        """Yields results. Between results, yields None from time to time, so that progress can be reported.

        Args:
            documents: consecutive documents.
            hint: results of earlier parts of the pool, which can speed up the inspection.
        """


@dataclass(frozen=True)
class Given:
    """The inputs with which a selection is prepared for scoring."""

    pool: "Pool"
    """The documents to choose from, too many for memory. Every pass reads them again."""
    target: Sequence[str]
    """Texts that the selected documents should resemble, from the tasks' train examples or from select.target_paths."""
    config: "Config"
    """Configuration of the job."""
    models: Mapping[str, "Pretrained"] = field(default_factory=dict)
    """Models that `Selection.models` names, keyed by path."""
    vectors: Vectors | None = None
    """Folders of the vectors that `Selection.vectors` names. None if the selection needs no vectors."""
    permitted: np.ndarray | None = None
    """Sorted ids of the documents that earlier selections passed on, int64. None if no selection came before."""


class Selection(ABC):
    """Base class of selections, which `select.kind` names.

    A trained selection is sent to the processes that score, so it must be picklable; its state is not sent back. A
    score may depend only on the document, the target and what was learned. Random numbers must depend on `document.id`
    (`adapt.select.selection.draws_at`), so that the number of processes does not change the selection.

    Args:
        options: an instance of the class's `Options`.
        seed: seed of the job.
    """

    Options: ClassVar[type[Any]] = NoOptions
    """Frozen dataclass of the options that can be set in the section with the selection's name."""

    def __init__(self, options: Any, seed: int) -> None:
        self.options = options
        self.seed = seed

    def what(self) -> dict[str, Any]:
        """Returns the options that determine the scores, for the key of a stage."""
        return what(self.options)

    def models(self) -> tuple[str, ...]:
        """Returns the paths of the models that the selection reads. An empty path is the job's initial model.

        The content of these models is part of the stage's key.
        """
        return ()

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Returns which vectors the selection needs: of the pool, of the target, of both, or none.

        Earlier stages compute these vectors.
        """
        return ()

    def packages(self) -> tuple[str, ...]:
        """Returns the packages whose versions affect the selection's scores (`adapt.runner.stage.deciding`)."""
        return ()

    def is_filter(self) -> bool:
        """Returns whether the selection only excludes documents.

        In a list of selections, a filter passes on all documents that it does not exclude.
        """
        return False

    def learn(self, given: Given) -> None:  # noqa: B027 most selections learn nothing before they score
        """Prepares the selection for scoring.

        The method may read the pool several times. `given.pool.each` reads the pool on the cluster.

        Raises:
          ConfigError, DataError: the selection cannot select from this pool for this target.
        """

    def look_for(self, room: Room, per_text: int | None) -> Offer:
        """Prepares the next pass of scoring. Selections that use an index search it in this method.

        Args:
          room: limits on the documents that will be held in memory, which are those with the highest scores.
          per_text: number of documents per target text. None if the budget is set in another way.

        Raises:
          DataError: the pool has too few documents.
        """
        return "all"

    def documents_found(self) -> int:
        """Returns the number of documents that `look_for` found in an index. 0 for selections without an index."""
        return 0

    def figures(self) -> dict[str, float]:
        """Returns metrics about the choice of documents, which the stage's record stores."""
        return {}

    @abstractmethod
    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields a score for each document, in the same order; documents with higher scores are taken first.

        Args:
            pool: consecutive documents, which are texts with an `id`. The method is called for each part of the pool
                that one process reads.
            target: texts that the selected documents should resemble.
        """


AT_ONCE = 4096


class Random(Selection):
    """Takes documents at random (RAND-TAPT), as the baseline for every other selection.

    The sample is uniform and without replacement.

    Each document gets a random number from (seed, id). Documents with the largest numbers are taken, so that a larger
    sample contains the smaller samples.
    """

    stream = 0

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields the random number of each document."""
        documents = iter(pool)
        while ids := [document.id for document in islice(documents, AT_ONCE)]:
            yield from draws_at(ids, self.seed, self.stream).tolist()


def draws_at(ids: np.ndarray | list[int], seed: int, stream: int = 0) -> np.ndarray:
    """Returns uniform numbers in (0, 1), one per document, float64 [n].

    Args:
        ids: ids of the documents, int64 [n].
        seed: seed of the job.
        stream: number of the random stream; different streams give independent numbers.
    """
    start = mix(np.array([(seed + (stream << 32)) % 2**64], np.uint64))
    numbers: np.ndarray = mix(start ^ np.asarray(ids, np.int64).astype(np.uint64))
    return ((numbers >> np.uint64(11)) + 0.5) / 2.0**53  # 53 bits, so that the result is neither 0 nor 1
