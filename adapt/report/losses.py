"""Tables of losses and of similarity: models by domains, domains by domains."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.report.tasks.verdict import nats
from adapt.runner.record import Record
from adapt.show.blocks import NONE, Cell, Table

MEASURES = {
    "overlap": ("Shared words", "Share of the 10,000 most frequent words that two domains have in common."),
    "jaccard": ("Jaccard index", "Of all their words."),
    "cross_loss": ("Cross loss", "Of a unigram model, nats a word; row: model, column: text."),
    "model_loss": ("Loss of the adapted models", "Nats a predicted token; row: model, column: text."),
}


def compared_models(record: Record) -> list[Table]:
    """Tables of a `compare` stage: held-out losses (Don't Stop Pretraining, table 12), and what else it measured."""
    metrics = record.metrics
    models, domains = metrics["models"], metrics["domains"]
    unit, digits = ("byte", 3) if metrics.get("unit") == "byte" else ("predicted token", 2)
    rows = []
    for number, model in enumerate(models):
        shades = [low_is_dark([row[column] for row in metrics["loss"]])[number] for column in range(len(domains))]
        cells = [
            Cell(f"{loss:.{digits}f}", _interval(metrics, number, column, "loss", digits), shade=shade)
            for column, (loss, shade) in enumerate(zip(metrics["loss"][number], shades, strict=True))
        ]
        rows.append([model, *cells])
    note = f"Nats a {unit}, 95% intervals over documents; the stronger the colour, the lower within its column."
    tables = [Table(["model, text", *domains], rows, "Held-out loss", note)]
    if len(models) > 1 and metrics.get("change"):
        tables.append(_changes(metrics, digits))
    if knn := metrics.get("knn"):
        tables.append(_by_model("Nearest neighbours", knn, models, 100, "Accuracy x 100 of frozen features."))
    if pseudo := metrics.get("pseudo_perplexity"):
        tables.append(_by_model("Pseudo-perplexity", pseudo, models, 1, "Lower is better (Salazar et al. 2020)."))
    return tables


def _changes(metrics: Mapping[str, Any], digits: int) -> Table:
    """Each model's loss against the first model's.

    They are paired by document, so more is seen than from the losses' intervals.
    """
    first, *others = metrics["models"]
    rows: list[list[Cell | str]] = [
        [
            model,
            *(
                Cell(nats(change, digits), _interval(metrics, number, column, "change", digits))
                for column, change in enumerate(changes)
            ),
        ]
        for number, (model, changes) in enumerate(zip(others, metrics["change"][1:], strict=True), start=1)
    ]
    note = "Paired by document, with 95% intervals. On text that a model was not adapted to: what it has forgotten."
    return Table(["model, text", *metrics["domains"]], rows, f"Change of the loss against {first}", note)


def similarity_tables(record: Record) -> list[Table]:
    """The tables of a `similarity` stage: a heatmap for each measure."""
    domains = record.metrics["domains"]
    tables = []
    for name, (title, note) in MEASURES.items():
        if matrix := record.metrics.get(name):
            share = name in ("overlap", "jaccard")
            tables.append(Table(["", *domains], _heatmap(domains, matrix, share), title, note))
    return tables


def _heatmap(names: Sequence[str], matrix: Sequence[Sequence[float]], share: bool) -> list[list[Cell | str]]:
    flat = low_is_dark([value for row in matrix for value in row])
    rows: list[list[Cell | str]] = []
    for number, (name, values) in enumerate(zip(names, matrix, strict=True)):
        shades = values if share else flat[number * len(values) : (number + 1) * len(values)]
        texts = [f"{100 * value:.0f}%" if share else f"{value:.2f}" for value in values]
        rows.append([name, *(Cell(text, shade=shade) for text, shade in zip(texts, shades, strict=True))])
    return rows


def low_is_dark(values: Sequence[float]) -> list[float]:
    """How dark each cell is: from 0 for the highest value to 1 for the lowest; all 0 if they are equal."""
    low, high = min(values), max(values)
    return [(high - value) / (high - low) if high > low else 0.0 for value in values]


def _interval(metrics: Mapping[str, Any], row: int, column: int, name: str, digits: int) -> str:
    low, high = (metrics.get(f"{name}_{end}") for end in ("low", "high"))
    if not low or not high or low[row][column] is None:
        return ""
    ends = low[row][column], high[row][column]
    return " to ".join(nats(end, digits) if name == "change" else f"{end:.{digits}f}" for end in ends)


def _by_model(
    title: str, values: Mapping[str, Mapping[str, float | None]], models: Sequence[str], times: float, note: str
) -> Table:
    rows: list[list[Cell | str]] = [
        [name, *(NONE if (value := by_model.get(model)) is None else f"{times * value:.1f}" for model in models)]
        for name, by_model in values.items()
    ]
    return Table(["", *models], rows, title, note)
