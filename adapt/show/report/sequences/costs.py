"""What sequences took, and how large the models are that they leave."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from adapt.errors import StageError
from adapt.runner.record import Record, load_record
from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.sequences.runs import SequenceRun, Sequences
from adapt.show.report.tasks.cost import hours

TRAINING, MEASURED = re.compile(r"steps\.\d+\.training"), re.compile(r"(^|\.)past\.")
"""What a sequence calls its trainings, and what its method measured between them."""
WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class RunCosts:
    """What one sequence took and left."""

    device_hours: float
    """Those of its trainings, and of what its method measured between them."""
    flops: float | None
    """Those of its trainings; None where the size of a model was not known."""
    peak_memory: float | None
    """The most that one worker held [bytes]; with libraries, on a CPU."""
    parameters: int
    """Those of the model that has learnt all domains, or of the models of all domains together."""
    stored: int
    """Weights of the same on disk [bytes]."""


def run_costs(run: SequenceRun) -> RunCosts | None:
    """Reads the records of the stages that a sequence is made of; None where one is gone."""
    trained = _records(path for name, path in run.made_of.items() if TRAINING.fullmatch(name))
    measured = _records(path for name, path in run.made_of.items() if MEASURED.search(name))
    left = _records(run.models if run.mode == "separate" else run.models[-1:])
    if not trained or measured is None or left is None:
        return None
    seconds = [record.cost.get("device_seconds") or 0.0 for record in (*trained, *measured)]
    flops = [record.metrics.get("flops") for record in trained]
    peaks = [record.metrics["peak_memory_bytes"] for record in trained if record.metrics.get("peak_memory_bytes")]
    parameters = [record.metrics["parameters"] for record in trained]
    return RunCosts(
        sum(seconds) / 3600,
        None if None in flops else sum(each for each in flops if each),
        max(peaks, default=None),
        sum(parameters) if run.mode == "separate" else parameters[-1],
        sum(size for record in left for name, size in record.outputs.items() if name.endswith(WEIGHTS)),
    )


def _records(folders: Iterable[str]) -> list[Record] | None:
    """The records of folders; None where one is gone or cannot be read."""
    found = []
    for folder in dict.fromkeys(folders):  # what is known of the past may be an input of every step
        try:
            record = load_record(Path(folder))
        except StageError:
            return None
        if record is None:
            return None
        found.append(record)
    return found


@dataclass(frozen=True)
class Column:
    """A figure of the table."""

    title: str
    of: Callable[[RunCosts], float | None]
    text: Callable[[float], str]
    over_runs: Callable[[Sequence[float]], float] = fmean


COLUMNS = (
    Column("parameters", lambda costs: costs.parameters, lambda value: f"{value / 1e6:,.1f} M"),
    Column("on disk", lambda costs: costs.stored, lambda value: _bytes(value)),
    Column("operations", lambda costs: costs.flops, lambda value: f"{value:.2e}"),
    Column("device time", lambda costs: costs.device_hours, hours, median),
    Column("peak memory", lambda costs: costs.peak_memory, lambda value: _bytes(value)),
)


def _bytes(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def sequence_costs(sequences: Sequences) -> Table | None:
    """A row for each method, over the baseline's; None where the records of sequences are gone."""
    known = {name: [found for run in runs if (found := run_costs(run))] for name, runs in sequences.methods.items()}
    if not any(known.values()):
        return None
    baseline = known.get(sequences.baseline or "", [])
    rows: list[list[Cell | str]] = [
        [name, *(_cell(column, found, baseline) for column in COLUMNS)] for name, found in known.items() if found
    ]
    note = (
        "Of a sequence; below it, over the baseline's. Parameters and weights on disk are those of the model that is "
        "left, or of the models of all domains; operations those of its trainings; device time (the median over runs) "
        "that of trainings and of what the method measures between them; memory the most that a worker held."
    )
    return Table(["method", *(column.title for column in COLUMNS)], rows, "What methods take", note)


def _cell(column: Column, found: Sequence[RunCosts], baseline: Sequence[RunCosts]) -> Cell:
    ours, theirs = (_over(column, each) for each in (found, baseline))
    if ours is None:
        return Cell(NONE)
    return Cell(column.text(ours), f"{ours / theirs:.2f}" if theirs and found is not baseline else "")


def _over(column: Column, found: Sequence[RunCosts]) -> float | None:
    values = [value for each in found if (value := column.of(each)) is not None]
    return column.over_runs(values) if values else None
