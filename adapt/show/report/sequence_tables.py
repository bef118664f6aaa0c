"""Makes tables of sequences: metrics by method, differences, scores by task, costs, and heatmaps of each method."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from adapt.runner.record import Record
from adapt.show.blocks import METRICS, NONE, Cell, Table, darkness, heldout_note, worded_interval
from adapt.show.report import study, task_comparison, task_tables
from adapt.show.report.sequence_runs import MEASURES, Measure, Paired, SequenceRun, Sequences, by_seed, cells_of
from adapt.stage.domain_sequence import two_lines
from adapt.statistics.comparison import p_value
from adapt.statistics.continual_metrics import Matrix
from adapt.statistics.seeds import spread

MODES = {"continual": "", "separate": "a model for each domain", "joint": "all domains at once"}
ABOUT = (
    "Forgetting rate: score just after a domain was learnt minus score at the end, over all domains but the last; "
    "negative if later domains help. Just learnt: mean score right after each task's own domain. Over separate models: "
    "the just-learnt score minus the score of a model that has learnt only this domain. Forward transfer: how much "
    "better a task, or the loss on a domain's text, is just before its domain is learnt than at the start; positive if "
    "the score rose or the loss fell. Change on general text: positive if the loss rose, which is forgetting. "
    "Scores are in points of 100, losses in nats per token."
)


TITLE = "Methods (scores in points of 100, losses in nats per token)"


def methods(sequences: Sequences, compared: Mapping[str, Mapping[str, Paired]]) -> Table:
    """Makes a table with a row per method: mean, standard deviation and 95% interval over seeds of each metric."""
    shown = _shown(sequences)
    rows: list[list[Cell | str]] = [
        [
            Cell(_heading(name, sequences), MODES[sequences.mode(name)]),
            *(_figure(sequences, name, measure, compared[measure.name].get(name)) for measure in shown),
            f"{sequences.seeds(name)}",
            f"{len(sequences.methods[name])}",
        ]
        for name in sequences.methods
    ]
    note = (
        "Mean over seeds ± standard deviation, with 95% interval. The value of a seed is the mean over its orders."
        f" {ABOUT}"
    )
    marks = f" {task_tables.MARKS}; not corrected for the number of metrics." if any(compared.values()) else ""
    return Table(["method", *(measure.title for measure in shown), "seeds", "runs"], rows, TITLE, note + marks)


def _shown(sequences: Sequences) -> list[Measure]:
    """Returns the metrics that are known for at least one run."""
    return [measure for measure in MEASURES if any(sequences.values(name, measure.name) for name in sequences.methods)]


def _heading(method: str, sequences: Sequences) -> str:
    return f"{method} (baseline)" if method == sequences.baseline else method


def _figure(sequences: Sequences, method: str, measure: Measure, paired: Paired | None) -> Cell:
    values = sequences.values(method, measure.name)
    if not values:
        return Cell(NONE)
    over_seeds = spread(values)
    small = "one seed"
    if over_seeds.deviation is not None:
        small = f"± {over_seeds.deviation:.3f}" if measure.is_loss else f"± {100 * over_seeds.deviation:.1f}"
    small += worded_interval(over_seeds.low, over_seeds.high, measure.text, ", ")
    return Cell(measure.text(over_seeds.mean), small, task_comparison.stars(paired))


def sequence_differences(sequences: Sequences, compared: Mapping[str, Mapping[str, Paired]]) -> Table | None:
    """Makes a table of the difference of every method from the baseline in each metric.

    Returns None if nothing is compared.
    """
    rows = [
        _difference(f"{name}, {measure.title}", measure, compared[measure.name][name])
        for name in sequences.methods
        for measure in MEASURES
        if name in compared[measure.name]
    ]
    note = (
        "Each seed of a method is paired with the same seed of the baseline, both as means over the orders that both "
        "have run. p is the larger of Student's t and the exact sign-flip test over the seeds. The latter is never "
        "below 2^(1 - seeds), so five seeds or fewer cannot be significant. For five seeds or fewer, the interval is "
        "Student's t, which assumes normal differences; from six seeds on, the interval agrees with p. Holm's method "
        "corrects for the number of methods, not of metrics. Variation between trainings is included; variation from "
        "the choice of tasks and orders is not. The verdict is equal if the interval lies within the margin of "
        f"{sequences.margin.points:g} points, or of {sequences.margin.nats:g} nats per token."
    )
    header = ["method", "difference", "95% interval", "p", "p (Holm)", "verdict", "seeds"]
    return Table(header, rows, f"Differences from {sequences.baseline}", note) if rows else None


def _difference(name: str, measure: Measure, paired: Paired) -> list[Cell | str]:
    comparison = paired.comparison
    ps = [NONE if p is None else p_value(p, bare=True) for p in (comparison.p, paired.adjusted)]
    return [
        name,
        Cell(measure.change(comparison.difference), strong=paired.significant),
        worded_interval(comparison.low, comparison.high, measure.change) or NONE,
        *ps,
        task_comparison.WORDS[paired.ended],
        f"{paired.pairs}",
    ]


def by_task(sequences: Sequences) -> Table | None:
    """Makes a table of the scores after the last domain, by task and method. Returns None if no task was run."""
    metric = {task: name for runs in sequences.methods.values() for run in runs for task, name in run.metric.items()}
    rows = [_task(task, METRICS.get(name, name), sequences) for task, name in metric.items()]
    header = ["task", *(_heading(name, sequences) for name in sequences.methods)]
    note = (
        "Mean over seeds in points of 100, ± standard deviation; the best is bold. The value of a seed is the mean "
        "over its orders. Separate models: the score of the model of the task's domain."
    )
    return Table(header, rows, "Scores at the end", note) if rows else None


def _task(task: str, metric: str, sequences: Sequences) -> list[Cell | str]:
    ends = {name: by_seed((run, run.end.get(task)) for run in runs) for name, runs in sequences.methods.items()}
    known = {name: list(scores.values()) for name, scores in ends.items()}
    best = max((float(np.mean(scores)) for scores in known.values() if scores), default=0.0)
    cells = [_score(scores, best, len(known) > 1) for scores in known.values()]
    return [Cell(task, metric), *cells]


def _score(scores: Sequence[float], best: float, has_several: bool) -> Cell:
    if not scores:
        return Cell(NONE)
    over_seeds = spread(scores)
    return task_tables.score_cell(over_seeds, "", has_several and over_seeds.mean == best)


def method_tables(method: str, runs: Sequence[SequenceRun]) -> list[Table]:
    """Makes the tables that a method reports, for one order of the domains. Each table has the rows of all seeds."""
    by_title: dict[str, Table] = {}
    for run in runs:
        seed = f"seed {run.seed}, " if len(runs) > 1 else ""
        for table in run.tables:
            rows: list[Sequence[Cell | str]] = [
                [f"{seed}{name}", *map(two_lines, cells)] for name, cells in table["rows"].items()
            ]
            before = by_title[table["title"]].rows if table["title"] in by_title else []
            title = f"{method}: {table['title']}"
            by_title[table["title"]] = Table(["", *table["columns"]], [*before, *rows], title)
    return list(by_title.values())


def every_run(sequences: Sequences) -> Table:
    """Makes a table with the metrics of each run, from which the values of the other tables can be computed."""
    shown = _shown(sequences)
    rows = [
        [name, _order(run, sequences), f"{run.seed}", *_of_run(run, shown)]
        for name, runs in sequences.methods.items()
        for run in runs
    ]
    return Table(["method", "order", "seed", *(measure.title for measure in shown)], rows, "Every run")


def _order(run: SequenceRun, sequences: Sequences) -> str:
    """Returns the name of a run's order. Runs that learn domains separately or at the same time have no order."""
    return (sequences.orders[run.order] or " → ".join(run.order)) if run.mode == "continual" else NONE


def _of_run(run: SequenceRun, shown: Sequence[Measure]) -> list[str]:
    measured = [(measure, run.figures.get(measure.name)) for measure in shown]
    return [NONE if value is None else measure.text(value) for measure, value in measured]


TRAINING, MEASURED = re.compile(r"steps\.\d+\.training"), re.compile(r"(^|\.)past\.")
"""Patterns for names of a sequence's inputs. TRAINING: the training stages. MEASURED: the stages in which the method
measures something between two training stages."""
WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class RunCosts:
    """Cost of one sequence, and size of the sequence's models."""

    device_hours: float
    """Device-hours of the sequence's training stages and of the method's measurements between these stages."""
    flops: float | None
    """Floating-point operations of the sequence's training stages, or None if the size of a model is unknown."""
    peak_memory: float | None
    """Peak memory of a worker [bytes]. On CPUs, libraries are included."""
    parameters: int
    """Number of parameters of the last model. If each domain has its own model, it is the number for all models
    together."""
    stored: int
    """Size on disk of the weights that `parameters` counts [bytes]."""


def run_costs(run: SequenceRun) -> RunCosts | None:
    """Reads the costs from the records of a sequence's stages. Returns None if a record is gone."""
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
    """Reads the records in some folders. Returns None if a record is gone or cannot be read."""
    # Several steps may share an input, which must be counted once.
    found = [study.record_at(folder) for folder in dict.fromkeys(folders)]
    known = [record for record in found if record]
    return known if len(known) == len(found) else None


@dataclass(frozen=True)
class Column:
    """A column of the table of costs."""

    title: str
    of: Callable[[RunCosts], float | None]
    text: Callable[[float], str]
    over_runs: Callable[[Sequence[float]], float] = fmean


COLUMNS = (
    Column("parameters", lambda costs: costs.parameters, lambda value: f"{value / 1e6:,.1f} M"),
    Column("size on disk", lambda costs: costs.stored, lambda value: _bytes(value)),
    Column("training FLOPs", lambda costs: costs.flops, lambda value: f"{value:.2e}"),
    Column("device time", lambda costs: costs.device_hours, task_comparison.hours, median),
    Column("peak memory", lambda costs: costs.peak_memory, lambda value: _bytes(value)),
)


def _bytes(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def sequence_costs(sequences: Sequences) -> Table | None:
    """Makes a table of the cost of each method, also relative to the baseline. Returns None if a record is gone."""
    known = {name: [found for run in runs if (found := run_costs(run))] for name, runs in sequences.methods.items()}
    if not any(known.values()):
        return None
    baseline = known.get(sequences.baseline or "", [])
    rows: list[list[Cell | str]] = [
        [name, *(_cell(column, found, baseline) for column in COLUMNS)] for name, found in known.items() if found
    ]
    note = (
        "Values per sequence; below each is its ratio to the baseline's value. Parameters and size on disk are of the "
        "final model, or of the models of all domains together. FLOPs are those of the trainings. Device time is the "
        "median over runs and includes what the method measures between trainings. Peak memory is the largest memory "
        "use of a worker."
    )
    return Table(["method", *(column.title for column in COLUMNS)], rows, "What methods cost", note)


def _cell(column: Column, found: Sequence[RunCosts], baseline: Sequence[RunCosts]) -> Cell:
    ours, theirs = (_over(column, each) for each in (found, baseline))
    if ours is None:
        return Cell(NONE)
    return Cell(column.text(ours), f"{ours / theirs:.2f}" if theirs and found is not baseline else "")


def _over(column: Column, found: Sequence[RunCosts]) -> float | None:
    values = [value for each in found if (value := column.of(each)) is not None]
    return column.over_runs(values) if values else None


NOTE = "Mean over seeds, ± standard deviation. Bold: just after the column's own domain was learnt."
SHADES = "Within a column, darker cells are better."


def matrices(runs: Sequence[SequenceRun], title: str) -> list[Table]:
    """Makes a table of scores and a table of losses. Each row is the model after one domain.

    Args:
        runs: runs of one method with one order of learning, one per seed.
        title: text in the tables' titles that names the order.
    """
    scores, losses = [run.scores for run in runs], [run.losses for run in runs]
    titles = f"{title}: scores [points of 100]", f"{title}: held-out loss [nats per token]"
    titled = zip((scores, losses), titles, ("", heldout_note(runs[0].documents)), strict=True)
    return [_heatmap(by_run, runs[0].order, name, more) for by_run, name, more in titled if by_run[0].columns]


def _heatmap(by_run: Sequence[Matrix], order: Sequence[str], title: str, more: str) -> Table:
    owners = dict(sorted(by_run[0].columns.items(), key=lambda column: len(order) if column[1] is None else column[1]))
    columns = [_column(by_run, name) for name in owners]
    names = ["before all", *(f"after {domain}" for domain in order)]
    rows = [[name, *cells] for name, *cells in zip(names, *columns, strict=True) if any(c.text != NONE for c in cells)]
    header = ["model", *(_header(name, number, order) for name, number in owners.items())]
    return Table(header, rows, title, f"{NOTE}{more}", shades=SHADES)


def _header(name: str, number: int | None, order: Sequence[str]) -> str:
    """Returns the heading of a column: the column's name, followed by its domain if name and domain differ."""
    return name if number is None or order[number] == name else f"{name} ({order[number]})"


def _column(by_run: Sequence[Matrix], name: str) -> list[Cell]:
    cells = cells_of(by_run, name)
    number, gain = by_run[0].columns[name], by_run[0].gain
    measured = {row: float(np.mean(values)) for row, values in enumerate(cells) if values}
    shades = dict(zip(measured, darkness([-gain * mean for mean in measured.values()] or [0.0]), strict=False))
    return [
        Cell(_text(measured[row], gain), _deviation(values, gain), strong=row - 1 == number, shade=shades[row])
        if values
        else Cell(NONE)
        for row, values in enumerate(cells)
    ]


def _text(value: float, gain: int) -> str:
    return f"{100 * value:.1f}" if gain > 0 else f"{value:.3f}"


def _deviation(values: Sequence[float], gain: int) -> str:
    deviation = spread(values).deviation
    # Shows no deviation if it is unknown (one seed) or 0 (the original model, which all seeds share).
    return f"± {_text(deviation, gain)}" if deviation else ""
