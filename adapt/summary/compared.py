"""The result of jobs/evaluate.py."""

from collections.abc import Mapping, Sequence

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show

Row = Sequence[float | None]


def show_comparison(record: Record) -> None:
    """Losses by model and domain, with what changed against the first model; features; perplexity; the picture."""
    metrics = record.metrics
    models, domains = metrics["models"], metrics["domains"]
    unit, digits = ("byte", 4) if metrics.get("unit") == "byte" else ("predicted token", 3)
    log(f"loss on held-out text, nats a {unit}, lower is better; below it the 95% interval")
    _show(domains, {model: _cells(metrics, "loss", row, f".{digits}f") for row, model in enumerate(models)})
    if len(models) > 1:
        log(
            f"change against {models[0]}, paired by document; on text a model was not adapted to, what it has forgotten"
        )
        rows = list(enumerate(models))[1:]
        _show(domains, {model: _cells(metrics, "change", row, f"+.{digits}f") for row, model in rows})
    if metrics.get("knn"):
        left = {task: count for task, count in metrics["knn_left_out"].items() if count}
        log("accuracy of nearest neighbours, by the cosine of mean features")
        _show_columns(models, metrics["knn"], ".1%")
        for task, count in left.items():
            log(f"{task}: {count} test texts that stand in train too are left out")
    if metrics.get("pseudo_perplexity"):
        log("pseudo-perplexity on held-out text, every token masked by itself (of causal models, perplexity)")
        _show_columns(models, metrics["pseudo_perplexity"], ",.2f")
    log(f"picture: {record.path / 'matrix.png'}")


def _cells(metrics: Mapping[str, list[Row]], name: str, row: int, form: str) -> list[str]:
    columns = zip(metrics[name][row], metrics[f"{name}_low"][row], metrics[f"{name}_high"][row], strict=True)
    return [
        f"{value:{form}}" + ("" if low is None else f"\n{low:{form}} to {high:{form}}") for value, low, high in columns
    ]


def _show_columns(models: Sequence[str], columns: Mapping[str, Mapping[str, float | None]], form: str) -> None:
    def text(value: float | None) -> str:
        return "" if value is None else f"{value:{form}}"

    _show(columns, {model: [text(values[model]) for values in columns.values()] for model in models})


def _show(columns: Sequence[str] | Mapping[str, object], rows: Mapping[str, Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("", *columns):
        table.add_column(Text(column))
    for name, cells in rows.items():
        table.add_row(Text(name), *cells)
    show(table)
