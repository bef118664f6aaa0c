"""A task's best recipe in detail: classes, confusions, calibration."""

from typing import Any

import numpy as np

from adapt.show.blocks import Block, Cell, Figures, Folded, Table
from adapt.show.report.tasks.collect import Results, Row, RunGroup
from adapt.show.report.tasks.figures import reliability


def best_recipe(row: Row, results: Results) -> Folded:
    """Details, folded, of the recipe with the highest mean score. Figures are means over its seeds."""
    best = max(row.groups.values(), key=lambda group: group.tested().scores.mean())
    blocks: list[Block] = [table for table in (_classes(best), _confusion(best), _calibration(row, results)) if table]
    if drawing := reliability(row, best, results):
        blocks.append(Figures([drawing]))
    return Folded(f"{row.name}: {results.label(best.recipe)}", blocks)


def _classes(group: RunGroup) -> Table | None:
    per_class: list[dict[str, Any]] = [metrics.get("per_class") or {} for metrics in group.metrics]
    if not per_class[0]:
        return None
    # a type of entity may come with one seed only
    labels = dict.fromkeys(label for classes in per_class for label in classes)
    rows: list[list[Cell | str]] = []
    for label in labels:
        by_seed = [classes.get(label, {}) for classes in per_class]
        means = [_mean([figures.get(name, 0.0) for figures in by_seed]) for name in ("precision", "recall", "f1")]
        support = max(figures.get("support", 0) for figures in by_seed)
        rows.append([label, *(f"{100 * value:.1f}" for value in means), f"{support:.0f}"])
    return Table(["class", "precision", "recall", "F1", "test examples"], rows, "By class")


def _confusion(group: RunGroup) -> Table | None:
    matrices = [metrics.get("confusion") for metrics in group.metrics]
    if not all(matrices):
        return None
    mean = np.mean(np.array(matrices, float), axis=0)
    labels = list(group.metrics[0]["per_class"])
    shares = mean / mean.sum(1, keepdims=True).clip(min=1)
    rows = [
        [label, *(Cell(f"{value:.0f}", shade=float(share)) for value, share in zip(values, parts, strict=True))]
        for label, values, parts in zip(labels, mean, shares, strict=True)
    ]
    return Table(
        ["true, predicted", *labels], rows, "Confusions", "Examples, mean over seeds; shade: share of the row."
    )


def _calibration(row: Row, results: Results) -> Table | None:
    """A table of calibration with all recipes: that of one recipe means little without the others."""
    names = {"ece": "calibration error", "nll": "log loss", "brier": "Brier score"}
    rows: list[list[Cell | str]] = []
    for recipe, group in row.groups.items():
        values = {name: [metrics.get(name) for metrics in group.metrics] for name in names}
        if all(figure is not None for by_seed in values.values() for figure in by_seed):
            rows.append([results.label(recipe), *(f"{_mean(by_seed):.3f}" for by_seed in values.values())])
    note = "Expected calibration error in 15 bins; means over seeds, lower is better."
    return Table(["recipe", *names.values()], rows, "Calibration", note) if rows else None


def _mean(values: list[Any]) -> float:
    return float(np.mean(values))
