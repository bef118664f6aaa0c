"""The stages that make the vectors which selections read: what they are, and where they have left them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapt.runner import Done
from adapt.stage.selecting.embed import Embed
from adapt.stage.selecting.enough import CountEnough
from adapt.stage.selecting.index import BuildIndex

if TYPE_CHECKING:
    from adapt.select.base import Vectors


@dataclass(frozen=True)
class VectorStages:
    """Vectors of pool and target in one space."""

    enough: CountEnough | None
    """Comes first, since it takes a moment; None where the budget says nothing of neighbours."""
    pool: BuildIndex
    target: Embed | None
    """None where no selection reads those of the target."""

    def made(self, done: Done) -> "Vectors":
        """Where they are."""
        from adapt.select.base import Vectors

        target = done[self.target].path if self.target else None
        return Vectors(done[self.pool].path, target, self.pool.vectors.space)
