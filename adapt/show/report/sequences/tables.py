"""Tables of sequences: figures by method, their differences, and scores by task."""

from collections.abc import Mapping, Sequence

import numpy as np

from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.sequences.compared import MEASURES, Measure, Paired
from adapt.show.report.sequences.runs import SequenceRun, Sequences, by_seed
from adapt.show.report.tasks.collect import METRICS
from adapt.show.report.tasks.tables import MARKS
from adapt.show.report.tasks.verdict import stars
from adapt.statistics.seeds import spread
from adapt.statistics.words import p_value

MODES = {"continual": "", "separate": "a model for each domain", "joint": "all domains at once"}
ABOUT = (
    "Forgetting rate: score just after a domain was learnt minus score at the end, over all domains but the last; "
    "negative where later domains help. Just learnt: mean score after each task's own domain. Over separate models: "
    "that minus the score of a model that has learnt the domain alone. Forward transfer: by how much a task, or the "
    "loss on a domain's text, is better just before its domain is learnt than in the beginning. "
    "General loss: change on general text. Scores in points, losses in nats a predicted token."
)


def methods(sequences: Sequences, compared: Mapping[str, Mapping[str, Paired]]) -> Table:
    """A row for each method: mean, deviation and 95% interval of its figures over seeds."""
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
    note = f"Mean over seeds, each the mean over its orders, ± standard deviation, 95% interval. {ABOUT}"
    marks = f" {MARKS}; not corrected for the number of figures." if any(compared.values()) else ""
    return Table(["method", *(measure.title for measure in shown), "seeds", "runs"], rows, "Methods", note + marks)


def _shown(sequences: Sequences) -> list[Measure]:
    """The figures that are known of any run."""
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
    if over_seeds.low is not None and over_seeds.high is not None:
        small += f", {measure.text(over_seeds.low)} to {measure.text(over_seeds.high)}"
    return Cell(measure.text(over_seeds.mean), small, stars(paired))


def sequence_differences(sequences: Sequences, compared: Mapping[str, Mapping[str, Paired]]) -> Table | None:
    """Every method against the baseline, figure by figure; None where nothing is compared."""
    rows = [
        _difference(f"{name}, {measure.title}", measure, compared[measure.name][name])
        for name in sequences.methods
        for measure in MEASURES
        if name in compared[measure.name]
    ]
    note = (
        "Paired: each seed against the baseline's, both as means over the orders they share. p is the larger of "
        "Student's t and the exact sign-flip test over the seeds, which is never below 2^(1 - seeds): five seeds or "
        "fewer cannot be significant. Their interval is Student's t, which assumes normal differences; from six seeds "
        "on it agrees with p. Holm corrects for the number of methods, not of figures. The chance in pre-training is "
        "in these figures; that of the choice of tasks and orders is not."
    )
    header = ["method", "difference", "95% interval", "p", "p (Holm)", "seeds"]
    return Table(header, rows, f"Differences from {sequences.baseline}", note) if rows else None


def _difference(name: str, measure: Measure, paired: Paired) -> list[Cell | str]:
    comparison = paired.comparison
    interval = (
        NONE
        if comparison.low is None or comparison.high is None
        else f"{measure.change(comparison.low)} to {measure.change(comparison.high)}"
    )
    ps = [NONE if p is None else p_value(p, bare=True) for p in (comparison.p, paired.adjusted)]
    return [
        name,
        Cell(measure.change(comparison.difference), strong=paired.significant),
        interval,
        *ps,
        f"{paired.pairs}",
    ]


def by_task(sequences: Sequences) -> Table | None:
    """Tasks by methods: the scores at the end; None where no task was run."""
    metric = {task: name for runs in sequences.methods.values() for run in runs for task, name in run.metric.items()}
    rows = [_task(task, METRICS.get(name, name), sequences) for task, name in metric.items()]
    header = ["task", *(_heading(name, sequences) for name in sequences.methods)]
    note = (
        "Mean over seeds, each the mean over its orders, x 100, ± standard deviation; best in bold. Separate "
        "models: the score of the model of the task's domain."
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
    small = "one seed" if over_seeds.deviation is None else f"± {100 * over_seeds.deviation:.1f}"
    return Cell(f"{100 * over_seeds.mean:.1f}", small, strong=has_several and over_seeds.mean == best)


def noted(method: str, runs: Sequence[SequenceRun]) -> list[Table]:
    """What a method noted of its runs in one order: a table for each title, with the rows of every seed."""
    by_title: dict[str, Table] = {}
    for run in runs:
        seed = f"seed {run.seed}, " if len(runs) > 1 else ""
        for table in run.tables:
            rows: list[Sequence[Cell | str]] = [
                [f"{seed}{name}", *map(_noted_cell, cells)] for name, cells in table["rows"].items()
            ]
            before = by_title[table["title"]].rows if table["title"] in by_title else []
            title = f"{method}: {table['title']}"
            by_title[table["title"]] = Table(["", *table["columns"]], [*before, *rows], title)
    return list(by_title.values())


def _noted_cell(text: str) -> Cell:
    first, _, small = text.partition("\n")
    return Cell(first, small)


def every_run(sequences: Sequences) -> Table:
    """The figures of each run, from which all others can be computed."""
    shown = _shown(sequences)
    rows = [
        [name, _order(run, sequences), f"{run.seed}", *_of_run(run, shown)]
        for name, runs in sequences.methods.items()
        for run in runs
    ]
    return Table(["method", "order", "seed", *(measure.title for measure in shown)], rows, "Every run")


def _order(run: SequenceRun, sequences: Sequences) -> str:
    """The name of a run's order; runs that learn domains apart or all at once have none."""
    return (sequences.orders[run.order] or " → ".join(run.order)) if run.mode == "continual" else NONE


def _of_run(run: SequenceRun, shown: Sequence[Measure]) -> list[str]:
    measured = [(measure, run.figures.get(measure.name)) for measure in shown]
    return [NONE if value is None else measure.text(value) for measure, value in measured]
