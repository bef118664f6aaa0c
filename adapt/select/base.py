"""What a selection is: a score for every document of a pool, of which those with the highest are taken."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from adapt.config import Config
    from adapt.model.locate import Pretrained

NEVER = float("-inf")
"""The score of a document that must not be taken, however large the budget."""


@dataclass(frozen=True)
class NoOptions:
    """A selection with nothing to set."""


@dataclass(frozen=True)
class Given:
    """What a selection may look at before it scores."""

    pool: Iterable[str]
    """The texts to choose from, too many to be held. Every iteration reads them anew, in the same order."""
    target: Sequence[str]
    """Texts that those that are selected should resemble: of the tasks' train examples, or of select.target_paths."""
    config: "Config"
    """The job's."""
    models: Mapping[str, "Pretrained"] = field(default_factory=dict)
    """Those that `Selection.models` names."""


class Selection(ABC):
    """A way of selecting. `select.kind` names it.

    Args:
        options: an instance of its `Options`.
        seed: of the job.
    """

    Options: ClassVar[type[Any]] = NoOptions
    """A frozen dataclass: what can be set, in `select.options`."""

    def __init__(self, options: Any, seed: int) -> None:
        self.options = options
        self.seed = seed

    def what(self) -> dict[str, Any]:
        """The options that determine its scores, for the key of a stage."""
        return asdict(self.options)

    def models(self) -> tuple[str, ...]:
        """The models that it reads, by path; "" is the one that the job begins with. Their content enters the key."""
        return ()

    def packages(self) -> tuple[str, ...]:
        """The packages that decide its scores; see `adapt.runner.packages`."""
        return ()

    def is_filter(self) -> bool:
        """Whether it only says which documents must not be taken: in a list it then passes on all others."""
        return False

    def learn(self, given: Given) -> None:  # noqa: B027 most selections need no look at the pool before they score
        """Comes before the scores. It may read the pool, as often as it needs.

        Raises:
            ConfigError, DataError: it cannot select from this pool for this target.
        """

    @abstractmethod
    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        """A score for each text of the pool, in its order, read once and as it comes; higher is taken first.

        Args:
            pool: texts, too many to be held.
            target: texts that those that are selected should resemble.
        """
