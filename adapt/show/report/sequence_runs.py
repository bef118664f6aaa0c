"""Groups the sequences of a study by method, and compares each method's metrics with the baseline's metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adapt.runner.record import Record
from adapt.show.report.study import Study, method_name
from adapt.show.report.task_comparison import RecipeCompared, corrected, nats, recipe_at_look
from adapt.statistics import continual_metrics, outcomes
from adapt.statistics.comparison import Comparison, paired, points
from adapt.statistics.seeds import MARGIN, Looked, Margin, endings
from adapt.support.better import better_directions

ONE = "against_one"
"""Name of the metric that compares a method's scores with separate models, each trained on one domain only."""


@dataclass(frozen=True)
class SequenceRun:
    """A finished sequence of domains, with its method, order and seed."""

    order: tuple[str, ...]
    """The domains in the order of learning."""
    seed: int
    mode: str
    """Mode of the sequence: `continual`, `separate` or `joint`."""
    tables: Sequence[Mapping[str, Any]]
    """Tables that the sequence's method reports. A table has `title`, `columns` and `rows`: lists of cells,
    keyed by the name of the row."""
    warnings: Sequence[str]
    scores: continual_metrics.Matrix
    losses: continual_metrics.Matrix
    metric: Mapping[str, str]
    """Name of the metric of each task."""
    figures: Mapping[str, float | None]
    documents: Mapping[str, int] = field(default_factory=dict)
    """Number of measured held-out documents, keyed by text."""
    models: Sequence[str] = ()
    """Folder of the model after each domain, in the order of learning."""
    made_of: Mapping[str, str] = field(default_factory=dict)
    """Folders of the stages that the sequence consists of, keyed by the name of the input."""

    @property
    def end(self) -> dict[str, float | None]:
        """Score of each task after the last domain, or None if it is unknown."""
        return continual_metrics.final(self.scores, self.mode)


@dataclass(frozen=True)
class Sequences:
    """All sequences of a study."""

    methods: Mapping[str, list[SequenceRun]]
    """Runs of each method. The baseline comes first, and other methods follow in the order of the study."""
    baseline: str | None
    orders: Mapping[tuple[str, ...], str]
    """Name of each order of domains that continual runs use, keyed by the order."""
    margin: Margin = MARGIN
    """Equivalence margins: smaller differences count as equal."""
    looks: Sequence[Looked] | None = None
    """Looks (interim analyses) of a sequential study that compare metrics of sequences. None for other studies."""

    def values(self, method: str, figure: str) -> list[float]:
        """Returns a method's values of a metric, one per seed. Seeds without a known value are left out."""
        return list(by_seed((run, run.figures.get(figure)) for run in self.methods[method]).values())

    def seeds(self, method: str) -> int:
        """Returns the number of seeds of a method."""
        return len({run.seed for run in self.methods[method]})

    def mode(self, method: str) -> str:
        """Returns the mode of a method's runs. All runs of a method have the same mode."""
        return self.methods[method][0].mode

    def of(self, method: str, order: tuple[str, ...]) -> list[SequenceRun]:
        """Returns the continual runs of a method with one order of learning, one run per seed."""
        return [run for run in self.methods[method] if run.mode == "continual" and run.order == order]


def sequences_of(study: Study) -> Sequences:
    """Groups the finished sequences by method.

    A method is named by its swept values except order and seed, such as the method and its options. Without such
    values, its name is the name of the entry in the chain file.
    """
    by_method: dict[str, dict[object, SequenceRun]] = {}
    orders: dict[tuple[str, ...], str] = {}
    for entry in study.entries:
        if entry.record.stage == "sequence":
            run = _run(entry.record)
            # Domains that are learnt separately or at the same time have no order.
            order_and_seed = (run.order if run.mode == "continual" else (), run.seed)
            by_method.setdefault(method_name(entry.name, entry.values), {}).setdefault(order_and_seed, run)
            if run.mode == "continual":
                orders.setdefault(run.order, entry.values.get("order", ""))
    names = sorted(by_method, key=lambda name: name != study.baseline)
    methods = {name: list(by_method[name].values()) for name in names}
    separate = [run for runs in methods.values() for run in runs if run.mode == "separate"]
    baseline = study.baseline if study.baseline in methods else None
    methods = {name: [_with_one(run, separate) for run in runs] for name, runs in methods.items()}
    looks = None if study.looks is None else [looked for looked in study.looks if looked.figure]
    return Sequences(methods, baseline, orders, study.margin, looks)


def _run(record: Record) -> SequenceRun:
    metrics = record.metrics
    return SequenceRun(
        order=tuple(metrics["order"]),
        seed=int(metrics["seed"]),
        mode=metrics["mode"],
        tables=metrics["tables"],
        warnings=metrics["warnings"],
        scores=continual_metrics.scores_of(metrics["scores"]),
        losses=continual_metrics.losses_of(metrics["losses"]),
        metric=metrics["scores"]["metric"],
        figures=continual_metrics.sequence_figures(metrics["scores"], metrics["losses"], metrics["mode"]),
        documents=metrics["losses"].get("documents", {}),
        models=list(metrics["models"].values()),
        made_of={name: made["path"] for name, made in record.inputs.items()},
    )


def _with_one(run: SequenceRun, separate: Sequence[SequenceRun]) -> SequenceRun:
    """Adds the metric that compares a run with the separate models of the same seed, if there are such models."""
    counterpart = next((other for other in separate if other.seed == run.seed), None)
    if counterpart is None or run.mode != "continual":
        return run
    return replace(
        run, figures={**run.figures, ONE: continual_metrics.against_separate(run.scores, counterpart.scores)}
    )


def by_seed(values: Iterable[tuple[SequenceRun, float | None]]) -> dict[int, float]:
    """Averages the known values over all orders, for each seed.

    Runs of one seed in several orders share the seed's random draws, so they are not independent.
    """
    known: dict[int, list[float]] = {}
    for run, value in values:
        if value is not None:
            known.setdefault(run.seed, []).append(value)
    return {seed: sum(of_seed) / len(of_seed) for seed, of_seed in known.items()}


def cells_of(by_run: Sequence[continual_metrics.Matrix], column: str) -> list[list[float]]:
    """Returns, for each row, the values of a column in several runs."""
    return [
        [row[column] for row in rows if column in row] for rows in zip(*(matrix.rows for matrix in by_run), strict=True)
    ]


@dataclass(frozen=True)
class Measure:
    """Name and format of a metric of sequences."""

    name: str
    """Name of the metric in `sequence_figures`."""
    title: str
    is_loss: bool = False
    """Whether the metric is a loss in nats per token. Other metrics are fractions, which are shown in points of 100."""
    is_change: bool = True
    """Whether the metric is a change, which is shown with its sign."""

    @property
    def better(self) -> int:
        """1 if a higher value of the metric is better, -1 if a lower value is better (see `SequenceFigures`)."""
        return 1 if self.name == ONE else better_directions(continual_metrics.SequenceFigures)[self.name]

    def margin(self, margin: Margin) -> float:
        """Returns the equivalence margin of the metric: smaller differences count as equal."""
        return margin.nats if self.is_loss else margin.share

    def change(self, value: float) -> str:
        """Formats a difference between two values of the metric."""
        return nats(value, 3) if self.is_loss else points(value)

    def text(self, value: float) -> str:
        """Formats a value of the metric without its unit."""
        if self.is_change:
            return self.change(value)
        return f"{value:.3f}" if self.is_loss else f"{100 * value:.1f}"


MEASURES = (
    Measure("average", "average score", is_change=False),
    Measure("forgetting", "forgetting rate"),
    Measure("learning", "just learnt", is_change=False),
    Measure(ONE, "over separate models"),
    Measure("forward_transfer", "forward transfer"),
    Measure("loss_average", "average loss", is_loss=True, is_change=False),
    Measure("loss_learning", "loss just learnt", is_loss=True, is_change=False),
    Measure("loss_forgetting", "loss forgetting", is_loss=True),
    Measure("loss_forward_transfer", "loss forward transfer", is_loss=True),
    Measure("general_change", "change on general text", is_loss=True),
)


@dataclass(frozen=True)
class Paired(RecipeCompared):
    """A comparison of a method with the baseline, paired by seed."""

    pairs: int = 0
    """Number of seeds with runs of both the method and the baseline."""


def compare_methods(sequences: Sequences) -> dict[str, dict[str, Paired]]:
    """Compares each method with the baseline. Returns the comparisons, keyed by metric and method.

    The metric ONE is left out, because its differences equal the differences of the score on the domain learnt last.
    In a sequential study, the metrics that decide when the study ends are compared as at its looks (interim analyses).
    Before the first look, nothing is compared: that would be another look, for which the error rates do not allow.
    """
    if sequences.looks is not None and not sequences.looks:
        return {measure.name: {} for measure in MEASURES}
    compared = {measure.name: _against_baseline(sequences, measure) for measure in MEASURES if measure.name != ONE}
    for measure in MEASURES:
        if looked := _at_looks(sequences, measure):
            compared[measure.name] = looked
    return {**compared, ONE: {}}


def _at_looks(sequences: Sequences, measure: Measure) -> dict[str, Paired]:
    """Returns, for one metric, the comparison of each method at the latest look of a sequential study."""
    return {
        method: Paired(**vars(recipe_at_look(ending)), pairs=ending.seeds)
        for (_, figure, method), ending in endings(sequences.looks or ()).items()
        if figure == measure.name and method in sequences.methods
    }


def _against_baseline(sequences: Sequences, measure: Measure) -> dict[str, Paired]:
    """Compares each method with the baseline, paired by seed. The p values are corrected for the number of methods."""
    comparisons = corrected(method_comparisons(sequences, measure), measure.margin(sequences.margin))
    return {
        name: Paired(**{**vars(compared), "better": measure.better}, pairs=len(_pairs(sequences, name, measure)))
        for name, compared in comparisons.items()
    }


def method_comparisons(sequences: Sequences, measure: Measure) -> dict[str, Comparison]:
    """Compares each method with the baseline in one metric, paired by seed, without correction."""
    if sequences.baseline is None:
        return {}
    others = [name for name in sequences.methods if name != sequences.baseline]
    pairs = {name: values for name in others if (values := _pairs(sequences, name, measure))}
    return {
        name: paired([mine - theirs for mine, theirs in values], any(map(outcomes.vary, zip(*values, strict=True))))
        for name, values in pairs.items()
    }


def _pairs(sequences: Sequences, method: str, measure: Measure) -> list[tuple[float, float]]:
    """Returns a method's value and the baseline's value for each seed with runs of both.

    If the method and the baseline both learn domains one after another, a value is the mean over the orders of domains
    for which both have runs. Otherwise, a value is the mean over all runs of the seed.
    """
    names = method, sequences.baseline or ""
    mine, theirs = (sequences.methods[name] for name in names)
    if all(sequences.mode(name) == "continual" for name in names):
        shared = {(run.order, run.seed) for run in mine if _value(run, measure) is not None}
        shared &= {(run.order, run.seed) for run in theirs if _value(run, measure) is not None}
        mine, theirs = ([run for run in runs if (run.order, run.seed) in shared] for runs in (mine, theirs))
    measured, expected = (by_seed((run, _value(run, measure)) for run in runs) for runs in (mine, theirs))
    return [(measured[seed], expected[seed]) for seed in measured if seed in expected]


def _value(run: SequenceRun, measure: Measure) -> float | None:
    return run.figures.get(measure.name)
