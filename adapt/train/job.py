"""What the driver tells a training run's workers, and the files through which they answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adapt.config import Config
from adapt.model.locate import Pretrained

if TYPE_CHECKING:
    from adapt.corpus.batches.mixture import Mixture
    from adapt.corpus.streaming.online import Online

METRICS_FILE = "metrics.jsonl"
"""One line of metrics a report, written by rank 0."""
PROGRESS_FILE = "progress.json"
"""The final counts."""
NOTICE_FILE = "notices.jsonl"
"""What the user is to know while it runs; see `adapt.train.tracking.notice`."""
WISH_FILE = "checkpoint-now"
"""There while a checkpoint is wished for out of turn; see `adapt.train.elastic.wish`."""
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
