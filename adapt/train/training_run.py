"""What the driver tells a training run's workers, and the files through which they answer: progress, metrics, notices.

Notices are words to the user, who sees none of the workers' output.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.model.locate import Pretrained

if TYPE_CHECKING:
    from adapt.corpus.sample_order import Mixture
    from adapt.corpus.streaming import Online


METRICS_FILE = "metrics.jsonl"
"""One line of metrics a report, written by rank 0."""
PROGRESS_FILE = "progress.json"
"""The final counts."""
NOTICE_FILE = "notices.jsonl"
"""What the user is to know while it runs; see `adapt.train.training_run`."""
WISH_FILE = "checkpoint-now"
"""There while a checkpoint is wished for out of turn; see `adapt.train.elastic.requested_checkpoints`."""
CARRIED = "carried"
"""What a method leaves for the next domain."""
CHECKPOINTS = "checkpoints"
"""Ray Train's storage: resumable checkpoints."""


@dataclass(frozen=True)
class TrainingRun:
    """All that a worker is told."""

    config: Config
    key: str
    """The stage's key; it also names the Ray Train run, so that a later start finds what an earlier one left."""
    folder: str
    """The stage's folder."""
    corpora: tuple[str, ...]
    """Folders of the prepared sources."""
    mixture: "Mixture | None"
    """How they share the run; None where the corpus is streamed."""
    pretrained: Pretrained
    """The model to start from."""
    steps: int
    """Length of the run. A streamed corpus may end before."""
    branch_step: int | None = None
    """Number of steps after which the state is kept for longer runs (see `adapt.train.checkpoints.branch`), if any."""
    online: "Online | None" = None
    """The corpus, if it is streamed."""
    past: Mapping[str, str] = field(default_factory=dict)
    """Folders of what the method asks for, by its name there."""
    base: str = ""
    """Folder of the model that the first of all domains began with; empty where that is `pretrained`."""
    number: int | None = None
    """Number of the domain in a sequence, from 1."""
    domain: str = ""
    """Name of the domain."""
    texts: tuple[str, ...] = ()
    """Folders of the domain's prepared text, which are among `corpora`; empty if it is streamed."""

    @property
    def run_name(self) -> str:
        """Name of the Ray Train run, and of its folder below CHECKPOINTS."""
        return self.key[:8]


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


def tell(folder: Path, message: str) -> None:
    """Adds a line to the file of notices.

    Args:
        folder: the stage's.
        message: what the user is told.
    """
    with suppress(OSError), (folder / NOTICE_FILE).open("a") as file:  # the training matters more than a notice
        file.write(json.dumps({"said": message}) + "\n")
