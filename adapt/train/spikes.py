"""Finds steps whose loss or gradient norm is far above recent values, before these steps change the weights.

A value is a spike if it is not finite, or if it exceeds m + k max(1.4826 MAD, |m| / 100). m is the median of the values
of the last n steps, and MAD their median absolute deviation from m. For normally distributed values, 1.4826 MAD is
their standard deviation. Unlike mean and standard deviation, m and MAD hardly change if a few values are extreme. The
decision needs n / 2 values, so only non-finite values are spikes in the first n / 2 steps of a run, and of each of its
phases.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from adapt.config import TrainingConfig
from adapt.corpus import sample_order, token_shards
from adapt.ray.node_files import at_home
from adapt.runner.files import add_line
from adapt.support import errors, schema
from adapt.train.training_run import Progress, TrainingRun, tell

WINDOW = 128
"""Number of previous steps that a step is compared with (n in the description of this module)."""
DEVIATIONS = 6.0
"""Number of deviations above the median from which a value is a spike (k in the description of this module)."""
SPIKES_FILE = "spikes.jsonl"
"""Name of the file in the stage's folder with a line per skipped step: its loss, gradient norm, rows and documents."""
_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""
_LEAST = 0.01
"""Minimum deviation that is used, as a share of the median. Without it, almost constant values would cause spikes."""
_SHOWN = 5


def limit(values: Sequence[float], deviations: float) -> float:
    """Returns the largest value that does not count as a spike.

    Args:
        values: values of the last steps.
        deviations: k in the description of this module.
    """
    middle = median(values)
    spread = median(abs(value - middle) for value in values)
    return middle + deviations * max(_DEVIATION * spread, _LEAST * abs(middle))


@dataclass(frozen=True)
class Spike:
    """A step whose loss or gradient norm is a spike."""

    step: int
    """Number of the step, counted from 1."""
    loss: float
    norm: float
    """Gradient norm before clipping."""
    why: str
    """Text that names the value that is too large, and its limit."""


class SpikeWatch:
    """Decides for each step whether it is a spike.

    All ranks pass equal values, so they make the same decision. The run's progress, and therefore each checkpoint,
    contains the window: the values of the last steps. A resumed run makes the same decisions as an uninterrupted run.

    Args:
        training: settings, including the window and the limits.
        progress: counts of the run, whose window and skipped steps are updated.
        named: function that describes the text of a step, given the number of the step, counted from 1.
    """

    def __init__(self, training: TrainingConfig, progress: Progress, named: Callable[[int], str]) -> None:
        self._training, self._progress, self._named = training, progress, named
        self.has_skipped = False
        """Whether the last step was skipped."""

    def judge(self, step: int, loss: float, norm: float) -> Spike | None:
        """Decides whether a step is a spike. Returns and counts the spike. Adds finite values to the window.

        Args:
            step: number of the step, counted from 1.
            loss: mean loss of the global batch.
            norm: global gradient norm before clipping.

        Raises:
            TrainingError: the spike ends the run (see `TrainingConfig.on_spike`).
        """
        progress, reasons = self._progress, []
        windows = {"loss": (loss, progress.recent_losses), "gradient norm": (norm, progress.recent_norms)}
        for name, (value, window) in windows.items():
            if reason := self._fault(name, value, window):
                reasons.append(reason)
            if math.isfinite(value):
                window.append(value)
                del window[:-WINDOW]
        self.has_skipped = bool(reasons)
        if not reasons:
            progress.skipped_in_a_row = 0
            return None
        spike = Spike(step, loss, norm, " and ".join(reasons))
        self._refuse(spike)
        progress.skipped_in_a_row += 1
        progress.skipped.append(step)
        return spike

    def _fault(self, name: str, value: float, window: Sequence[float]) -> str:
        """Returns a text that says why a value is a spike. Returns an empty text if it is not a spike."""
        if not math.isfinite(value):
            return f"its {name} is {value}"
        if len(window) < max(WINDOW // 2, 1):
            return ""
        most = limit(window, DEVIATIONS)
        usual = f"the median of the last {len(window)} steps is {median(window):.4g}"
        return f"its {name} {value:.4g} is above {most:.4g} ({usual})" if value > most else ""

    def _refuse(self, spike: Spike) -> None:
        """Raises TrainingError if a spike ends the run."""
        most, data = self._training.max_spikes, self._named(spike.step)
        if self._training.on_spike == "stop":
            fix = "look at the text, lower training.learning_rate, or set training.on_spike to skip"
        elif self._progress.skipped_in_a_row >= most:
            fix = "lower training.learning_rate, or raise training.max_spikes if the text explains the spikes"
            data = f"{most} steps before it were skipped too (training.max_spikes); {data}"
        else:
            return
        raise errors.TrainingError(
            f"step {spike.step} is a spike: {spike.why}; text of the step: {data}",
            f"{fix}; the last checkpoint is intact",
        )


@dataclass(frozen=True)
class SpikeText:
    """Finds and stores the text of spikes."""

    job: TrainingRun

    def named(self, step: int) -> str:
        """Describes the rows and documents of a step's global batch. The first ranges of documents are listed.

        Args:
            step: number of the step, counted from 1.
        """
        parts = []
        for source, (rows, ranges) in self._located(step).items():
            listed = ", ".join(
                f"{first:,}-{last:,}" if last > first else f"{first:,}" for first, last in ranges[:_SHOWN]
            )
            more = f" and {len(ranges) - _SHOWN:,} other ranges" if len(ranges) > _SHOWN else ""
            parts.append(f"{len(rows):,} rows of {source}" + (f": documents {listed}{more}" if ranges else ""))
        return "; ".join(parts)

    def store(self, spike: Spike) -> None:
        """Adds a skipped step to the file of spikes, and tells the user. Rank 0 calls it."""
        folder = Path(self.job.folder)
        located = self._located(spike.step).items()
        text = {source: {"rows": rows, "documents": ranges} for source, (rows, ranges) in located}
        values = {"step": spike.step, "loss": _known(spike.loss), "gradient_norm": _known(spike.norm), "why": spike.why}
        at_home(folder, add_line, folder / SPIKES_FILE, {**values, "text": text})
        tell(folder, f"step {spike.step} is skipped: {spike.why}; {self.named(spike.step)} (see {SPIKES_FILE})")

    def _located(self, step: int) -> dict[str, tuple[list[int], list[tuple[int, int]]]]:
        """Returns the rows and the ranges of documents of a step, keyed by the folder of their prepared text.

        Documents are numbered from 0 in the order of the prepared text. Rows of a streamed corpus are numbered in the
        order in which they are trained on, and their documents are not known.
        """
        training, number = self.job.config.training, step - 1
        stretch = next((each for each in self.job.stretches if each.first <= number < each.last), None)
        if stretch is None:
            return {"the stream": (sample_order.samples(number, 0, 1, training.global_batch_size).tolist(), [])}
        places = stretch.mixture.locate(sample_order.samples(number, 0, 1, stretch.global_batch_size) + stretch.shift)
        located: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        for source in np.unique(places.sources):
            rows, folder = sorted(places.rows[places.sources == source].tolist()), Path(self.job.corpora[source])
            stream, length = token_shards.TokenStream.open(folder, schema.SHARD_GLOB), stretch.sequence_length
            ranges = {stream.documents_in(row * length, (row + 1) * length) for row in rows}
            located[f"{folder.parent.name}/{folder.name}"] = rows, sorted(ranges)
        return located


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
