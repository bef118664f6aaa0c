"""Defines the settings that the driver sends to the workers of a training run, and the files with their answers.

The files hold progress, metrics and notices. Notices are messages to the user, who does not see the workers' output.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.model.locate import Pretrained
from adapt.ray.node_files import at_home
from adapt.runner.files import add_line

if TYPE_CHECKING:
    from adapt.corpus.sample_order import Mixture
    from adapt.corpus.streaming import Online
    from adapt.train.points import PointMeasure


METRICS_FILE = "metrics.jsonl"
"""Name of the file with metrics, one line per report, which rank 0 writes."""
PROGRESS_FILE = "progress.json"
"""Name of the file with the final counts of a run, such as steps and tokens."""
MEASURED = "eval_"
"""Prefix of the names of metrics that come from measurements of the model between steps."""
NOTICE_FILE = "notices.jsonl"
"""Name of the file with messages to the user while the training runs; see `tell`."""
WISH_FILE = "checkpoint-now"
"""Name of a file whose presence requests an additional checkpoint (`adapt.train.checkpoints.requested_checkpoints`)."""
CARRIED = "carried"
"""Name of the folder with files that a method writes for the training on the next domain."""
CHECKPOINTS = "checkpoints"
"""Name of the folder in which Ray Train stores the resumable checkpoints."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps with batches of one size and rows of one length, from one mixture."""

    first: int
    """First step of the stretch."""
    last: int
    """Last step plus one."""
    global_batch_size: int
    sequence_length: int
    mixture: "Mixture"
    sample: int
    """Position in the mixture's sequence of samples at which the stretch begins."""

    @property
    def shift(self) -> int:
        """Number of earlier samples, minus what it would be if all earlier steps had this stretch's batch size."""
        return self.sample - self.first * self.global_batch_size

    @cached_property
    def rows(self) -> list[int]:
        """Number of rows that the stretch reads from each source."""
        return self.mixture.drawn(self.end, self.sample)

    @property
    def end(self) -> int:
        """Position of the first sample after the stretch, in the mixture's sequence of samples."""
        return self.sample + (self.last - self.first) * self.global_batch_size


@dataclass(frozen=True)
class TrainingRun:
    """All settings that the driver sends to a worker of a training run."""

    config: Config
    key: str
    """Key of the stage. Its first digits name the Ray Train run, so that a restarted job finds its checkpoints."""
    folder: str
    """Folder of the stage."""
    corpora: tuple[str, ...]
    """Folders of the prepared sources of text."""
    stretches: tuple[Stretch, ...]
    """The run as consecutive stretches of steps with the same batches and mixture. Empty if the corpus is streamed."""
    pretrained: Pretrained
    """Model that the run starts from."""
    steps: int
    """Number of the last step of the run, counted from the first phase. A streamed corpus may end earlier."""
    first_step: int = 0
    """Number of steps of the earlier phases. 0 for a run without phases."""
    branch_step: int | None = None
    """Number of steps after which the state is stored for longer runs (`adapt.train.checkpoints.branch`), if any."""
    online: "Online | None" = None
    """Settings of a streamed corpus. None if the corpus is not streamed."""
    past: Mapping[str, str] = field(default_factory=dict)
    """Folders of results of earlier stages that the method needs, keyed by the method's names for them."""
    base: str = ""
    """Folder of the model that the first domain of the sequence started from. Empty if that model is `pretrained`."""
    number: int | None = None
    """Number of the domain in a sequence, from 1."""
    domain: str = ""
    """Name of the domain that the model is adapted to."""
    texts: tuple[str, ...] = ()
    """Folders of the domain's prepared text, a subset of `corpora`. Empty if the corpus is streamed."""
    weighed_words: str = ""
    """Folder with the weights of the domain's words. Empty if the objective needs no weights of words."""
    head_warmup: int = 0
    """Number of steps at the start in which only the language-model head is trained."""
    measures: "tuple[PointMeasure, ...]" = ()
    """The measurements of the model that the run makes between steps."""
    measure_interval: int = 0
    """Number of steps between two measurements."""
    teachers: tuple[str, ...] = ()
    """Folders of the models that the method reads in addition to the trained model (`Method.other_models`)."""

    @property
    def run_name(self) -> str:
        """Name of the Ray Train run, and of its folder below CHECKPOINTS."""
        return self.key[:8]


@dataclass
class Progress:
    """Counts of a run. A resumed run needs only these counts, the weights, the optimizer state and the seed."""

    step: int = 0
    """Number of completed steps."""
    tokens: int = 0
    """Number of tokens trained on, over all ranks."""
    inherited_tokens: int = 0
    """Part of `tokens` that another run trained on, if this run started from the state of that run."""
    seconds: float = 0.0
    """Time spent on the completed steps [s]. Steps lost to crashes are not included."""
    data_wait_seconds: float = 0.0
    """Part of `seconds` that was spent waiting for batches [s]."""
    device_seconds: float = 0.0
    """Time summed over all devices [s]. It includes measurements between steps, and steps lost to crashes if this
    process computed these steps."""
    recent_losses: list[float] = field(default_factory=list)
    """Losses of the last steps of the phase, oldest first. Empty unless `training.on_spike` is set (see
    `adapt.train.spikes`)."""
    recent_norms: list[float] = field(default_factory=list)
    """Gradient norms of the last steps of the phase, oldest first. Empty unless `training.on_spike` is set."""
    skipped_in_a_row: int = 0
    """Number of steps that were skipped since the last step that changed the weights."""
    skipped: list[int] = field(default_factory=list)
    """Numbers of all steps that were skipped because they were spikes, counted from 1."""
    evaluation_seconds: float = 0.0
    """Time spent on measurements between steps [s], which is not part of `seconds`."""
    points: list[dict[str, Any]] = field(default_factory=list)
    """The measurements so far, each with its `step` and `figures`."""

    @property
    def own_tokens(self) -> int:
        """Number of tokens that this run itself trained on."""
        return self.tokens - self.inherited_tokens


def as_inherited(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the initial progress of a run that starts from another run's state.

    The progress has the steps, tokens and spikes of the other run, but its times are 0.
    """
    inherited = Progress(**progress)
    spent = dict.fromkeys(("seconds", "data_wait_seconds", "device_seconds", "evaluation_seconds"), 0.0)
    return {**asdict(inherited), **spent, "inherited_tokens": inherited.tokens}


def tell(folder: Path, message: str) -> None:
    """Adds a message for the user to the file of notices."""
    with suppress(OSError):  # an error is ignored, because a failure to write a message must not end the run
        at_home(folder, add_line, folder / NOTICE_FILE, {"said": message})
