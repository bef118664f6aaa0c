"""What a search gained, on fresh seeds."""

from typing import Any

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show


def show_confirmed(record: Record) -> None:
    """The best trial beside the configuration as it is, and how much of the gain was selection."""
    from rich.markup import escape
    from rich.table import Table

    metrics = record.metrics
    title = f"{escape(record.name)}: mean of {len(metrics['seeds'])} fresh seeds, with 95% intervals"
    table = Table(title=title, title_justify="left")
    for column in ("figure", "best trial", "as it is", "difference"):
        table.add_column(column)
    for name, figure in metrics["fresh"].items():
        known = [_interval(figure[column]) for column in ("best", "as_it_is")]
        table.add_row(name, *known, _interval(figure["difference"]) if figure["difference"] else "")
    show(table)
    if gain := gain_told(metrics):
        log(gain)


def gain_told(metrics: dict[str, Any]) -> str:
    """How much of the gain in the first objective was selection, in a sentence; empty where that cannot be said."""
    if metrics["gained"] is None:
        return "the configuration as it is failed, so what the best values gain is not known"
    if metrics["selection"] is None:
        return ""
    objective = next(iter(metrics["fresh"]))
    return (
        f"{objective}: the best trial was better by {metrics['apparent']:.4f} when it was chosen, and is by"
        f" {metrics['gained']:+.4f} with fresh seeds; {metrics['selection']:+.4f} of that was selection"
    )


def _interval(figure: dict[str, Any] | None) -> str:
    if figure is None:  # the configuration as it is failed
        return "failed"
    interval = "" if figure["low"] is None else f" ({figure['low']:.4f} to {figure['high']:.4f})"
    return f"{figure['value']:.4f}{interval}"
