"""Tables of losses and of similarity: models by domains, domains by domains."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.chain.record import Record
from adapt.report.blocks import NONE, Cell, Table

MEASURES = {
    "overlap": ("Shared words", "Share of the 10,000 most frequent words that two domains have in common."),
    "jaccard": ("Jaccard index", "Of all their words."),
    "cross_loss": ("Cross loss", "Of a unigram model, nats a word; row: model, column: text."),
    "model_loss": ("Loss of the adapted models", "Nats a predicted token; row: model, column: text."),
}


def compared_models(record: Record) -> list[Table]:
    """Of a `compare` stage: held-out losses (Don't Stop Pretraining, table 12), and what else was measured."""
    found = record.metrics
    models, domains = found["models"], found["domains"]
    rows = []
    for place, model in enumerate(models):
        shades = [_low_is_dark([row[column] for row in found["loss"]])[place] for column in range(len(domains))]
        cells = [
            Cell(f"{loss:.2f}", _interval(found, place, column), shade=shade)
            for column, (loss, shade) in enumerate(zip(found["loss"][place], shades, strict=True))
        ]
        rows.append([model, *cells])
    note = "Nats a predicted token with 95% intervals; the darker, the lower within its column."
    tables = [Table(["model, text", *domains], rows, "Held-out loss", note)]
    if knn := found.get("knn"):
        tables.append(_by_model("Nearest neighbours", knn, models, 100, "Accuracy x 100 of frozen features."))
    if pseudo := found.get("pseudo_perplexity"):
        tables.append(_by_model("Pseudo-perplexity", pseudo, models, 1, "Lower is better (Salazar et al. 2020)."))
    return tables


def similarity(record: Record) -> list[Table]:
    """Of a `similarity` stage: a heatmap for each measure."""
    domains = record.metrics["domains"]
    tables = []
    for name, (title, note) in MEASURES.items():
        if matrix := record.metrics.get(name):
            share = name in ("overlap", "jaccard")
            tables.append(Table(["", *domains], _heatmap(domains, matrix, share), title, note))
    return tables


def _heatmap(names: Sequence[str], matrix: Sequence[Sequence[float]], share: bool) -> list[list[Cell | str]]:
    flat = _low_is_dark([value for row in matrix for value in row])
    rows: list[list[Cell | str]] = []
    for place, (name, values) in enumerate(zip(names, matrix, strict=True)):
        shades = values if share else flat[place * len(values) : (place + 1) * len(values)]
        text = [f"{100 * value:.0f}%" if share else f"{value:.2f}" for value in values]
        rows.append([name, *(Cell(each, shade=shade) for each, shade in zip(text, shades, strict=True))])
    return rows


def _low_is_dark(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(high - value) / (high - low) if high > low else 0.0 for value in values]


def _interval(found: Mapping[str, Any], row: int, column: int) -> str:
    low, high = (found.get(name) for name in ("loss_low", "loss_high"))
    if not low or not high or low[row][column] is None:
        return ""
    return f"{low[row][column]:.2f} to {high[row][column]:.2f}"


def _by_model(
    title: str, values: Mapping[str, Mapping[str, float]], models: Sequence[str], times: float, note: str
) -> Table:
    rows: list[list[Cell | str]] = [
        [name, *(f"{times * of[model]:.1f}" if model in of else NONE for model in models)]
        for name, of in values.items()
    ]
    return Table(["", *models], rows, title, note)
