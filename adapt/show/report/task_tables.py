"""Makes tables and drawings of task results.

Tables show scores, differences, the score of every seed, and details of a task's best recipe. Drawings show
differences, learning curves, reliability, and cost against gain.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator, NullFormatter

from adapt.show.blocks import METRICS, NONE, Block, Cell, Drawing, Figures, Folded, Table, worded_interval
from adapt.show.drawing import INK, METRICS_LINES, WIDTH, canvas, color, json_lines, loss_curve, short, style, svg
from adapt.show.report.study import Entry
from adapt.show.report.study_results import Results, Row, RunGroup
from adapt.show.report.task_comparison import WORDS, Compared, RecipeCompared, Trainings, stars
from adapt.stage.export_model import phase_inputs
from adapt.statistics.comparison import Comparison, out_of_reach, p_value, points
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
        "is found in 80% of simulated studies with the same number of seeds, the same variance and no correction; a "
        "dash if p cannot fall below .05. Each model was pre-trained once, so the intervals and p do not include "
        "variation between pre-training runs. They do not include variation from the choice of tasks either."
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
    note = (
        "Test scores in points of 100, with the seed below. ‡ marks runs that predict one class only; the means include"
        " them."
    )
    return Table(["task, recipe", *(f"run {number}" for number in range(1, width))], filled, "Every seed", note)


def _seed_cells(group: RunGroup) -> list[Cell]:
    return [
        Cell(f"{100 * metrics['score']:.1f}", f"seed {metrics['seed']}", "‡" if metrics.get("degenerate") else "")
        for metrics in group.metrics
    ]


def best_recipe(row: Row, results: Results) -> Folded:
    """Makes a folded block with details of the recipe with the highest mean score, as means over the recipe's seeds."""
    best = max(row.groups.values(), key=lambda group: group.tested().scores.mean())
    blocks: list[Block] = [table for table in (_classes(best), _confusion(best), _calibration(row, results)) if table]
    if drawing := reliability(row, best, results):
        blocks.append(Figures([drawing]))
    return Folded(f"{row.name}: {results.label(best.recipe)}", blocks)


def _classes(group: RunGroup) -> Table | None:
    per_class: list[dict[str, Any]] = [metrics.get("per_class") or {} for metrics in group.metrics]
    if not per_class[0]:
        return None
    # Lists the labels of all seeds, because a seed may predict entity types that other seeds do not predict.
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
        shades="Darker cells have a larger share of their row.",
    )


def _calibration(row: Row, results: Results) -> Table | None:
    """Makes a table of the calibration of all recipes, because one recipe's calibration means little by itself."""
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


Drawn = tuple[str, str]
"""A drawing, as SVG and caption."""


def difference_figures(results: Results, compared: Compared) -> list[Drawn]:
    """Draws the difference of each recipe from the baseline, with its 95% interval. All tasks have the same scale."""
    ends = [100 * end for task in compared.tasks.values() for end in _ends(task.comparison)]
    if not ends:
        return []
    room = 0.06 * (max(0.0, *ends) - min(0.0, *ends) or 1)
    limits = min(0.0, *ends) - room, max(0.0, *ends) + room
    drawings = []
    for row in results.rows:
        by_recipe = {
            recipe: compared.tasks[row.name, recipe]
            for recipe in results.recipes
            if (row.name, recipe) in compared.tasks
        }
        if by_recipe:
            drawings.append((_forest(row, by_recipe, results, limits), f"{row.name}, {METRICS[row.metric]}"))
    return drawings


def _forest(row: Row, by_recipe: Mapping[str, RecipeCompared], results: Results, limits: tuple[float, float]) -> str:
    with style():
        figure, axes = canvas(WIDTH, 0.75 + 0.32 * len(by_recipe))
        for height, (recipe, compared) in enumerate(by_recipe.items()):
            shade, (low, high) = color(results.recipes.index(recipe)), _ends(compared.comparison)
            axes.plot([100 * low, 100 * high], [height, height], color=shade, linewidth=2.5, solid_capstyle="round")
            fill = shade if compared.significant else "none"  # A hollow point means that the difference may be chance.
            axes.plot(
                100 * compared.comparison.difference,
                height,
                "o",
                color=shade,
                markerfacecolor=fill,
                markersize=8,
            )
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(range(len(by_recipe)), [short(results.label(recipe)) for recipe in by_recipe])
        axes.set_ylim(len(by_recipe) - 0.4, -0.6)
        axes.set_xlim(*limits)
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="both", length=0)
        axes.set_xlabel(f"points against {short(results.baseline or '')}")
        return svg(figure, f"difference-{row.name}")


def _ends(comparison: Comparison) -> tuple[float, float]:
    """Returns the ends of the interval of a difference. Without an interval, both ends are the difference."""
    if comparison.low is None or comparison.high is None:
        return comparison.difference, comparison.difference
    return comparison.low, comparison.high


def learning_curves(row: Row, results: Results) -> Drawn | None:
    """Draws the dev score after each epoch: the mean over seeds that reached the epoch, and a faint line per seed."""
    curves = {recipe: _curves(group) for recipe, group in row.groups.items()}
    if not any(curves.values()):
        return None
    with style():
        figure, axes = canvas(WIDTH, 2.7)
        for recipe, runs in curves.items():
            shade = color(results.recipes.index(recipe))
            for run in runs:
                axes.plot(
                    [point["epoch"] for point in run], [100 * point["dev"] for point in run], color=shade, alpha=0.2
                )
            epochs = sorted({point["epoch"] for run in runs for point in run})
            means = [
                np.mean([point["dev"] for run in runs for point in run if point["epoch"] == epoch]) for epoch in epochs
            ]
            axes.plot(epochs, 100 * np.array(means), color=shade, linewidth=2, marker="o", markersize=3.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"{METRICS[row.metric]} on dev")
        return svg(figure, f"curve-{row.name}"), row.name


def _curves(group: RunGroup) -> list[list[dict[str, Any]]]:
    curves = []
    for entry in group.entries:
        curve = [point for line in json_lines(entry.record.path / "curve.json") for point in line]
        curves += [curve] if curve and all(point.get("dev") is not None for point in curve) else []
    return curves


def training_curve(entry: Entry, name: str) -> Drawing | None:
    """Draws the loss by step of a finished pre-training run."""
    files = [Path(made["path"]) / METRICS_LINES for made in phase_inputs(entry.record)]
    return loss_curve(files, name, name) if files else None


def reliability(row: Row, group: RunGroup, results: Results) -> Drawn | None:
    """Draws accuracy against confidence, for the decisions of all seeds. Larger points stand for more decisions."""
    bins: dict[float, list[dict[str, float]]] = {}
    for metrics in group.metrics:
        for interval in metrics.get("reliability") or []:
            bins.setdefault(round(interval["low"], 6), []).append(interval)
    if not bins:
        return None
    sizes = {low: sum(interval["decisions"] for interval in intervals) for low, intervals in bins.items()}
    confidence, accuracy = (
        [sum(interval["decisions"] * interval[name] for interval in bins[low]) / sizes[low] for low in sorted(bins)]
        for name in ("confidence", "accuracy")
    )
    shade, most = color(results.recipes.index(group.recipe)), max(sizes.values())
    with style():
        figure, axes = canvas(0.7 * WIDTH, 0.7 * WIDTH)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1)
        axes.plot(confidence, accuracy, color=shade, linewidth=1.2)
        areas = [12 + 120 * sizes[low] / most for low in sorted(bins)]
        axes.scatter(confidence, accuracy, s=areas, color=shade)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        return svg(figure, f"reliability-{row.name}"), (
            "Reliability: below the line, the model's confidence is higher than its accuracy. Larger points stand for"
            " more decisions."
        )


def cost_against_gain(results: Results, compared: Compared, trainings: Trainings) -> Drawn | None:
    """Draws device-hours of pre-training against mean gain. Returns None unless the costs of two recipes are known."""
    most = max(compared.shared.values(), default=0)
    prices = {recipe: trainings.of_recipe(results, recipe).device_hours for recipe in compared.average}
    known = {recipe: price for recipe, price in prices.items() if price and compared.shared[recipe] == most}
    if len(known) < 2:
        return None
    with style():
        figure, axes = canvas(1.3 * WIDTH, 3.4)
        for recipe, price in known.items():
            average, shade = compared.average[recipe], color(results.recipes.index(recipe))
            low, high = _ends(average.comparison)
            axes.plot([price, price], [100 * low, 100 * high], color=shade, linewidth=2)
            fill = shade if average.significant else "none"
            axes.plot(price, 100 * average.comparison.difference, "o", color=shade, markerfacecolor=fill, markersize=9)
        axes.axhline(0, color=INK, linewidth=1)
        _price_axis(axes, list(known.values()))
        axes.set_xlabel("device-hours of pre-training, all tasks together")
        axes.set_ylabel(f"mean gain over {short(results.baseline or '')} [points]")
        about = "Cost against gain, with 95% intervals. Hollow points may be due to chance."
        return svg(figure, "cost-against-gain"), about


def _price_axis(axes: Any, prices: Sequence[float]) -> None:
    """Makes the axis of costs logarithmic, with plain numbers at 1, 2 and 5 times the powers of ten."""
    low, high = min(prices) / 1.6, max(prices) * 1.6
    ticks = [base * 10.0**power for power in range(-5, 7) for base in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    if len(shown) > 7:
        shown = [tick for tick in shown if math.log10(tick) % 1 == 0]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.xaxis.set_minor_formatter(NullFormatter())
