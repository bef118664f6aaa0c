"""What a selection is: a score for every document of a pool, of which those with the highest are taken."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class NoOptions:
    """A selection with nothing to set."""


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

    @abstractmethod
    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        """A score for each text of the pool, in its order, read once and as it comes; higher is taken first.

        Args:
            pool: texts, too many to be held.
            target: texts of the tasks' train examples, which those that are selected should resemble.
        """
