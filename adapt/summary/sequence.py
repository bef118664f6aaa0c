"""The result of jobs/sequence.py."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show

MOST_WARNINGS = 3
_FIGURES = {
    "average": ("average score at the end", 100, ".1f", "points"),
    "learning": ("average score just after each task's own domain", 100, ".1f", "points"),
    "forgetting": ("forgetting rate", 100, "+.1f", "points"),
    "forward_transfer": ("forward transfer", 100, "+.1f", "points"),
    "loss_average": ("average held-out loss at the end", 1, ".3f", "nats"),
    "loss_forgetting": ("forgetting on held-out loss", 1, "+.3f", "nats"),
    "loss_forward_transfer": ("forward transfer on held-out loss", 1, "+.3f", "nats"),
    "general_change": ("change of the loss on general text", 1, "+.3f", "nats"),
}


def show_sequence(record: Record) -> None:
    """Scores, losses, the figures in words, what the method noted, warnings, and where the model is."""
    found = record.metrics
    domains = " → ".join(found["order"])
    log(f"{record.name}: {found['method']}, {found['mode']}, seed {found['seed']}, domains {domains}")
    _show_matrix(found, "scores", "test scores in points, mean over fine-tuning seeds, below it the deviation", _score)
    _show_matrix(found, "losses", "loss on held-out text, nats a predicted token, lower is better", _loss)
    for name, (text, times, form, unit) in _FIGURES.items():
        if found.get(name) is not None:
            log(f"{text}: {times * found[name]:{form}} {unit}{_side(name, found[name])}")
    for table in found["tables"]:
        _show(table["title"], table["columns"], table["rows"])
    warnings = found["warnings"]
    for warning in warnings[:MOST_WARNINGS]:
        log(f"warning: {warning}")
    if len(warnings) > MOST_WARNINGS:
        log(f"and {len(warnings) - MOST_WARNINGS} more, in stage.json")
    log(f"model: {found['model']}")


def _side(name: str, value: float) -> str:
    """Says what the sign of a forgetting rate means: less is better."""
    if "forgetting" not in name or not value:
        return ""
    return " (forgotten)" if value > 0 else " (later domains helped)"


def _show_matrix(found: Mapping[str, Any], name: str, title: str, cell: Callable[[Any], str]) -> None:
    order = found["order"]
    columns = dict(sorted(found[name]["columns"].items(), key=lambda one: len(order) if one[1] is None else one[1]))
    rows = {
        _row_name(after, order, found["mode"]): [cell(row.get(column)) for column in columns]
        for after, row in enumerate(found[name]["rows"])
        if any(row.get(column) is not None for column in columns)
    }
    if rows:
        header = [_owner(column, number, order) for column, number in columns.items()]
        _show(title, header, rows)


def _row_name(after: int, order: Sequence[str], mode: str) -> str:
    if not after:
        return "as it came"
    return {"separate": f"{order[after - 1]} alone", "joint": "all at once"}.get(mode, f"after {order[after - 1]}")


def _owner(column: str, number: int | None, order: Sequence[str]) -> str:
    return column if number is None or order[number] == column else f"{column}\n({order[number]})"


def _score(seeds: Sequence[float] | None) -> str:
    if not seeds:
        return ""
    mean = statistics.mean(seeds)
    deviation = f"\n± {100 * statistics.stdev(seeds):.1f}" if len(seeds) > 1 else ""
    return f"{100 * mean:.1f}{deviation}"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _show(title: str, header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    log(title)
    table = Table()
    table.add_column("", overflow="fold")
    for column in header:
        table.add_column(Text(column), overflow="fold")
    for name, cells in rows.items():
        table.add_row(Text(name), *cells)
    show(table)
