"""The base class of selections: a score for every document of a pool, of which the highest are taken.

`Random` is the control that every other selection has to beat (RAND-TAPT, Don't Stop Pretraining section 5.3).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from adapt.support.splitmix import mix

if TYPE_CHECKING:
    from adapt.config import Config
    from adapt.model.locate import Pretrained
    from adapt.select.pool import Document


T = TypeVar("T")
Seen = TypeVar("Seen", covariant=True)
NEVER = float("-inf")
"""The score of a document that must not be taken, however large the budget."""


@dataclass(frozen=True)
class NoOptions:
    """A selection with nothing to set."""


VectorsOf = Literal["pool", "target"]
Offer = Literal["all", "more", "enough"]
"""What has got a score. `all`: every document that may be taken; `more`: with more room further ones would have one;
`enough`: those that are wanted, even if they do not fill the budget."""


@dataclass(frozen=True)
class Room:
    """How many of the best texts are held: as many as both take. What is None does not count."""

    documents: int | None = None
    characters: int | None = None
    """The best texts that have so many characters together, and no more of them than that takes."""

    def is_over(self, documents: int, characters: int, worst: int) -> bool:
        """Whether texts are enough without the worst of them.

        Args:
            documents: texts that are held.
            characters: of all of them.
            worst: characters of the worst.
        """
        enough = self.documents is None or documents > self.documents
        return enough and (self.characters is None or characters - worst >= self.characters)


@dataclass(frozen=True)
class Vectors:
    """Where the vectors are that stages have made; those of pool and target can be compared."""

    pool: Path
    """Folder of an index (`adapt.index`), by the ids of the documents."""
    target: Path | None
    """Folder of those of the target (`adapt.embed.vector_files`), where a selection has asked for them."""
    space: str
    """What made the vectors of the target."""


class Inspection(Protocol[Seen]):
    """Looks at documents that are read in one go, in any process."""

    def __call__(self, documents: "Iterator[Document]", hint: Any) -> "Iterator[Seen | None]":
        """What it sees; None now and then, so that progress can be told.

        Args:
            documents: some that follow each other.
            hint: what is known by now.
        """


class DocumentPool(Protocol):
    """The documents to choose from, too many to be held: `adapt.select.pool.Pool`. Every pass reads them anew."""

    def __iter__(self) -> "Iterator[Document]":
        """All documents, in this process, in order."""

    def each(self, function: "Callable[[Iterator[Document]], T]", on_device: bool = False) -> "Iterator[T]":
        """What a function makes of some documents at a time (an item), side by side on the cluster, in order.

        Args:
            function: goes to the processes that read, and its answers come back: both must survive pickling.
            on_device: whether it needs a GPU, where the cluster has one; it is then kept with what it has loaded.
        """

    def visit(
        self, look: "Inspection[T]", hint: Callable[[], Any] = lambda: None, on_device: bool = False
    ) -> "Iterator[T]":
        """The same for what shows progress meanwhile, and is told what is known when an item is about to be read."""

    def narrowed(self, ids: np.ndarray) -> "DocumentPool":
        """Some of the documents alone, by their ids, int64."""


@dataclass(frozen=True)
class Given:
    """What a selection may look at before it scores."""

    pool: DocumentPool
    """The documents to choose from."""
    target: Sequence[str]
    """Texts that those that are selected should resemble: of the tasks' train examples, or of select.target_paths."""
    config: "Config"
    """The job's."""
    models: Mapping[str, "Pretrained"] = field(default_factory=dict)
    """Those that `Selection.models` names."""
    vectors: Vectors | None = None
    """Those that `Selection.vectors` names."""
    permitted: np.ndarray | None = None
    """Ids of the documents of the pool, int64, sorted, where selections before this one have narrowed it; else None."""


class Selection(ABC):
    """A way of selecting. `select.kind` names it.

    What it has learnt goes to the processes that score, so it must survive pickling; nothing comes back from there. A
    score depends on its document, the target and what was learnt alone, and numbers that are drawn, on `document.id`
    (`adapt.select.selection.draws_at`): so the same is selected by one process and by many.

    Args:
        options: an instance of its `Options`.
        seed: of the job.
    """

    Options: ClassVar[type[Any]] = NoOptions
    """A frozen dataclass: what can be set, in the section that is called like the selection."""

    def __init__(self, options: Any, seed: int) -> None:
        self.options = options
        self.seed = seed

    def what(self) -> dict[str, Any]:
        """The options that determine its scores, for the key of a stage."""
        return asdict(self.options)

    def models(self) -> tuple[str, ...]:
        """The models that it reads, by path; "" is the one that the job begins with. Their content enters the key."""
        return ()

    def vectors(self) -> tuple[VectorsOf, ...]:
        """Whose vectors it reads. Stages make them before."""
        return ()

    def packages(self) -> tuple[str, ...]:
        """The packages that decide its scores; see `adapt.runner.key`."""
        return ()

    def is_filter(self) -> bool:
        """Whether it only says which documents must not be taken: in a list it then passes on all others."""
        return False

    def learn(self, given: Given) -> None:  # noqa: B027 most selections need no look at the pool before they score
        """Comes before the scores. It may read the pool, as often as it needs; by `given.pool.each` on the cluster.

        Raises:
            ConfigError, DataError: it cannot select from this pool for this target.
        """

    def look_for(self, room: Room, per_text: int | None) -> Offer:
        """Comes before every reading of the scores. One that must search for documents looks for so many.

        Args:
            room: how many of the documents with the highest scores will be held.
            per_text: the budget, where it is so many documents for each text of the target.

        Raises:
            DataError: there are not as many.
        """
        return "all"

    def figures(self) -> dict[str, float]:
        """What the record keeps of how it has chosen."""
        return {}

    @abstractmethod
    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """A score for each of some documents of the pool, in their order, as they come; higher is taken first.

        Args:
            pool: documents that follow each other; they are texts with an `id`. It is called for each item.
            target: texts that those that are selected should resemble.
        """


AT_ONCE = 4096


class Random(Selection):
    """Takes documents at random (RAND-TAPT), the control for every other selection.

    The sample is uniform and without replacement.

    Each document draws a number by (seed, id), and those with the largest are taken: more are asked for, those of a
    smaller sample are among them.
    """

    stream = 0

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """The draws."""
        documents = iter(pool)
        while ids := [document.id for document in islice(documents, AT_ONCE)]:
            yield from draws_at(ids, self.seed, self.stream).tolist()


def draws_at(ids: np.ndarray | list[int], seed: int, stream: int = 0) -> np.ndarray:
    """Uniform numbers in (0, 1) for some documents: float64 [n].

    Args:
        ids: of the documents, int64 [n].
        seed: of the job.
        stream: numbers of another stream are other numbers.
    """
    start = mix(np.array([(seed + (stream << 32)) % 2**64], np.uint64))
    numbers: np.ndarray = mix(start ^ np.asarray(ids, np.int64).astype(np.uint64))
    return ((numbers >> np.uint64(11)) + 0.5) / 2.0**53  # 53 bits: neither 0 nor 1
