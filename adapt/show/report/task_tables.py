"""Tables of task results: scores, differences, the score of every seed, and details of a task's best recipe."""

from typing import Any

import numpy as np

from adapt.show.blocks import METRICS, NONE, Block, Cell, Figures, Folded, Table, worded_interval
from adapt.show.report.task_comparison import WORDS, Compared, RecipeCompared, stars
from adapt.show.report.task_figures import reliability
from adapt.show.report.task_runs import Results, Row, RunGroup
from adapt.statistics.comparison import out_of_reach, p_value, points
from adapt.statistics.seeds import Spread, spread

MARKS = "* differs from the baseline (Holm-corrected p < .05), ** p < .01"
TRANSDUCTIVE = "† transductive: pre-training has read the text of dev and test"


def score_tables(results: Results, compared: Compared, without_leaks: bool = False) -> Table:
    """Makes a table of tasks by recipes with mean and deviation over seeds (Don't Stop Pretraining, table 5)."""
    header = ["task", *(_heading(results, recipe) for recipe in results.recipes)]
    body = [_scores_row(row, results, compared, without_leaks) for row in results.rows]
    if len(results.rows) > 1:
        body.append(["average", *(_average(results.rows, recipe, without_leaks) for recipe in results.recipes)])
    notes = ["Mean over seeds in points of 100, ± standard deviation; the best is bold"]
    notes += [MARKS] if compared.tasks else []
    notes += [TRANSDUCTIVE] if results.transductive else []
    title = "Scores on test examples whose text is not in train" if without_leaks else "Scores on test"
    return Table(header, body, title, note=". ".join(notes) + ".")


def _heading(results: Results, recipe: str) -> str:
    return results.label(recipe) + (" (baseline)" if recipe == results.baseline else "")


def _scores_row(row: Row, results: Results, compared: Compared, without_leaks: bool) -> list[Cell | str]:
    means = {recipe: group.tested(without_leaks).scores.mean() for recipe, group in row.groups.items()}
    best = max(means.values())
    cells: list[Cell | str] = [Cell(row.name, small=METRICS[row.metric])]
    for recipe in results.recipes:
        if recipe not in means:
            cells.append(Cell(NONE))
            continue
        over_seeds = spread(row.groups[recipe].tested(without_leaks).scores)
        mark = stars(compared.tasks.get((row.name, recipe)))
        cells.append(score_cell(over_seeds, mark, len(means) > 1 and means[recipe] == best))
    return cells


def score_cell(over_seeds: Spread, mark: str, strong: bool) -> Cell:
    """Makes a cell with a mean score in points, and the standard deviation over seeds."""
    small = "one seed" if over_seeds.deviation is None else f"± {100 * over_seeds.deviation:.1f}"
    return Cell(f"{100 * over_seeds.mean:.1f}", small, mark, strong)


def _average(rows: list[Row], recipe: str, without_leaks: bool) -> Cell:
    """Makes a cell with the mean over all tasks.

    The cell has a dash if the recipe lacks a task, because means over different tasks cannot be compared.
    """
    if any(recipe not in row.groups for row in rows):
        return Cell(NONE)
    means = [row.groups[recipe].tested(without_leaks).scores.mean() for row in rows]
    return Cell(f"{100 * sum(means) / len(means):.1f}")


def score_differences(results: Results, compared: Compared) -> Table:
    """Makes a table of all comparisons with the baseline: interval, p and smallest detectable difference."""
    figures = ["difference", "95% interval", "p", "p (Holm)", "verdict", "detectable difference", "resampled"]
    body = [
        _difference(f"{name}, {results.label(recipe)}", recipe_compared)
        for (name, recipe), recipe_compared in compared.tasks.items()
    ]
    body += [
        _difference(f"average of {compared.shared[recipe]} tasks, {results.label(recipe)}", recipe_compared)
        for recipe, recipe_compared in compared.average.items()
        if compared.shared[recipe] > 1
    ]
    note = (
        "Differences from the baseline in points of 100. Intervals resample seeds and test examples (the same examples "
        "for both sides); they are not corrected for the number of recipes. p is the largest of three: a permutation "
        "test that exchanges seeds between recipes, one that exchanges predictions by example, and the resampled "
        "differences. Holm's method corrects p for the number of recipes. The verdict is equal if the interval lies "
        f"within the margin of {100 * results.margin:g} points. Detectable difference: a true difference of this size "
        "is found in 80% of simulated studies with as many seeds, as much variance and no correction; none if p cannot "
        "fall below .05. Each model was pre-trained once, so the figures do not contain the variation between "
        "pre-trainings, nor that of the choice of tasks."
    )
    return Table(["task, recipe", *figures], body, "Differences from the baseline", note)


def _difference(name: str, compared: RecipeCompared) -> list[Cell | str]:
    comparison = compared.comparison
    ps = [NONE if p is None else p_value(p, bare=True) for p in (comparison.p, compared.adjusted)]
    known = None if out_of_reach(comparison, compared.recipes) else comparison.detectable
    detectable = NONE if known is None else f"{100 * known:.1f}"
    over = " and ".join(comparison.over) or "nothing"
    return [
        name,
        Cell(points(comparison.difference), strong=compared.significant),
        worded_interval(comparison.low, comparison.high, points) or NONE,
        *ps,
        WORDS[compared.ended],
        detectable,
        over,
    ]


def seeds(results: Results) -> Table:
    """Makes a table with the score of every run, by seed."""
    body: list[list[Cell | str]] = [
        [f"{row.name}, {results.label(recipe)}", *_seed_cells(row.groups[recipe])]
        for row in results.rows
        for recipe in results.recipes
        if recipe in row.groups
    ]
    width = max(len(row) for row in body)
    filled = [[*row, *[""] * (width - len(row))] for row in body]
    note = "Test scores in points of 100, with the seed below. ‡ predicts one class only; it counts like the others."
    return Table(["task, recipe", *(f"run {number}" for number in range(1, width))], filled, "Every seed", note)


def _seed_cells(group: RunGroup) -> list[Cell]:
    return [
        Cell(f"{100 * metrics['score']:.1f}", f"seed {metrics['seed']}", "‡" if metrics.get("degenerate") else "")
        for metrics in group.metrics
    ]


def best_recipe(row: Row, results: Results) -> Folded:
    """Makes folded details of the recipe with the highest mean score. The figures are means over the recipe's seeds."""
    best = max(row.groups.values(), key=lambda group: group.tested().scores.mean())
    blocks: list[Block] = [table for table in (_classes(best), _confusion(best), _calibration(row, results)) if table]
    if drawing := reliability(row, best, results):
        blocks.append(Figures([drawing]))
    return Folded(f"{row.name}: {results.label(best.recipe)}", blocks)


def _classes(group: RunGroup) -> Table | None:
    per_class: list[dict[str, Any]] = [metrics.get("per_class") or {} for metrics in group.metrics]
    if not per_class[0]:
        return None
    # Some seeds may predict types of entities that other seeds do not predict.
    labels = dict.fromkeys(label for classes in per_class for label in classes)
    rows: list[list[Cell | str]] = []
    for label in labels:
        by_seed = [classes.get(label, {}) for classes in per_class]
        means = [_mean([figures.get(name, 0.0) for figures in by_seed]) for name in ("precision", "recall", "f1")]
        support = max(figures.get("support", 0) for figures in by_seed)
        rows.append([label, *(f"{100 * value:.1f}" for value in means), f"{support:.0f}"])
    return Table(["class", "precision", "recall", "F1", "test examples"], rows, "By class [points of 100]")


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
        ["true class", *labels],
        rows,
        "Confusions: predicted classes",
        "Number of test examples, mean over seeds.",
        shades="The darker, the larger the share of the row.",
    )


def _calibration(row: Row, results: Results) -> Table | None:
    """Makes a table of the calibration of all recipes, because the calibration of one recipe cannot be judged."""
    names = {"ece": "calibration error", "nll": "log loss [nats]", "brier": "Brier score"}
    rows: list[list[Cell | str]] = []
    for recipe, group in row.groups.items():
        values = {name: [metrics.get(name) for metrics in group.metrics] for name in names}
        if all(figure is not None for by_seed in values.values() for figure in by_seed):
            rows.append([results.label(recipe), *(f"{_mean(by_seed):.3f}" for by_seed in values.values())])
    note = "Expected calibration error over 15 bins of confidence. Means over seeds; lower is better."
    return Table(["recipe", *names.values()], rows, "Calibration", note) if rows else None


def _mean(values: list[Any]) -> float:
    return float(np.mean(values))
