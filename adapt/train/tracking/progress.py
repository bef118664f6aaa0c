"""Where a run is, and what it took to get there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """With the seed, all that a resumed run needs besides weights and optimizer."""

    step: int = 0
    """Steps done."""
    tokens: int = 0
    """Tokens trained on, over all ranks."""
    inherited_tokens: int = 0
    """The part of them that another run trained on, where this one started from a state of its."""
    seconds: float = 0.0
    """Time spent on the steps that count (work lost to crashes left out)."""
    data_wait_seconds: float = 0.0
    """The part of it spent waiting for batches."""
    device_seconds: float = 0.0
    """Time of all devices together, also for the steps lost to crashes that this process saw."""

    @property
    def own_tokens(self) -> int:
        """Tokens that this run itself trained on, in its seconds."""
        return self.tokens - self.inherited_tokens


def as_inherited(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The progress of a run that starts from the state of another: as far as that one, but at no cost of its own."""
    inherited = Progress(**progress)
    return asdict(Progress(step=inherited.step, tokens=inherited.tokens, inherited_tokens=inherited.tokens))
