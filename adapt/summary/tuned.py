"""The result of a search."""

from typing import Any

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show

SHOWN = 40
"""Trials that a table has at most, the best ones first."""


def show_search(record: Record) -> None:
    """All trials with their values and objectives, the best by the first objective on top."""
    from rich.markup import escape
    from rich.table import Table

    metrics = record.metrics
    objectives, trials = metrics["objectives"], metrics["trials"]
    fields = list(dict.fromkeys(name for trial in trials for name in trial["values"]))
    title = f"{escape(record.name)}: trials of {metrics['job']}, on dev; * none is better in all objectives"
    table = Table(title=title, title_justify="left")
    judged = any(trial["steps"] for trial in trials)
    for column in ("trial", *(["steps"] if judged else []), *objectives, *fields):
        table.add_column(column)
    for trial in in_order(metrics)[:SHOWN]:
        mark = "*" if trial["number"] in metrics["front"] else ""
        values = [_value(trial["values"].get(name, "as it is")) for name in fields]
        steps = [str(trial["steps"])] if judged else []
        table.add_row(f"{trial['number']}{mark}", *steps, *(_figure(trial, name) for name in objectives), *values)
    show(table)
    if len(trials) > SHOWN:
        log(f"and {len(trials) - SHOWN} more, in {record.path / 'stage.json'}")
    log(
        f"{len(trials)} trials, {metrics['stages']} stages; {metrics['shared']} times a trial found a stage that"
        f" another has, too; {metrics['device_hours']:.3g} device-hours"
    )
    log(f"best on dev: trial {metrics['best']}; its configuration: {record.path / 'best.yaml'}")


def in_order(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials of a search: those that came furthest first, the best of them on top, and failed ones last."""
    ((name, way), *_) = metrics["objectives"].items()
    sign = 1 if way == "min" else -1
    known = [trial for trial in metrics["trials"] if trial["figures"]]
    failed = [trial for trial in metrics["trials"] if not trial["figures"]]

    def place(trial: dict[str, Any]) -> tuple[int, float, int]:
        return -(trial["steps"] or 0), sign * trial["figures"][name]["value"], trial["number"]

    return sorted(known, key=place) + failed


def _figure(trial: dict[str, Any], name: str) -> str:
    figure = trial["figures"].get(name)
    if figure is None:
        return "failed"
    interval = "" if figure["low"] is None else f" ({figure['low']:.3f} to {figure['high']:.3f})"
    return f"{figure['value']:.4f}{interval}"


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
