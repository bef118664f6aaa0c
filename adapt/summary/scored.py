"""The result of jobs/finetune.py."""

from typing import Any

from adapt.console import duration, log
from adapt.runner.record import Record
from adapt.summary.tables import show


def show_scores(record: Record, task: str) -> None:
    """Every seed's score, mean, deviation and interval.

    Args:
        record: of the stage `scores`.
        task: the name of the task, which records do not keep.
    """
    from rich.markup import escape
    from rich.table import Table

    metrics = record.metrics
    title = f"{escape(record.name)}: {escape(task)}, {metrics['mode']}, test {metrics['metric']} in points"
    title += marked(metrics)
    table = Table(title=title, title_justify="left")
    for column in ("mean", "deviation", "95% interval", "seeds", "always the most frequent class"):
        table.add_column(column)
    scores = "  ".join(in_points(score) for score in metrics["scores"].values())
    table.add_row(*_spread(metrics), scores, in_points(metrics["majority_score"]))
    if metrics["without_leaks"]:
        table.add_row(*_spread(metrics["without_leaks"]), "without test texts that stand in train", "")
    show(table)
    if metrics["degenerate"]:
        log(f"{metrics['degenerate']} of {metrics['seeds']} seeds predict one class only; they are counted in")
    log(f"{duration(record.cost['device_seconds'])} of device time")


def in_points(score: float | None) -> str:
    """A share as points of a hundred."""
    return "" if score is None else f"{100 * score:.1f}"


def marked(metrics: dict[str, Any]) -> str:
    """The mark of models that have been trained on the text they are tested on."""
    return " († transductive: pre-training has read the text of dev and test)" if metrics.get("transductive") else ""


def _spread(values: dict[str, Any]) -> tuple[str, str, str]:
    interval = "" if values["low"] is None else f"{in_points(values['low'])} to {in_points(values['high'])}"
    return in_points(values["mean"]), in_points(values["deviation"]), interval
