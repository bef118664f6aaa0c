"""Drawings of task results: differences, learning curves, reliability, and cost against gain."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator, NullFormatter

from adapt.show.blocks import METRICS, Drawing
from adapt.show.drawing import INK, METRICS_LINES, WIDTH, canvas, color, json_lines, loss_curve, short, style, svg
from adapt.show.report.study import Entry
from adapt.show.report.task_comparison import Compared, RecipeCompared, Trainings
from adapt.show.report.task_runs import Results, Row, RunGroup
from adapt.stage.export_model import phase_inputs
from adapt.statistics.comparison import Comparison

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
    """Draws the dev score after each epoch: the mean over seeds that reached the epoch, and each seed faintly."""
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
    """Draws the loss by step of a finished pre-training."""
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
            "Reliability: below the line the model is surer than it is right; a point is larger where there is more."
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
        return svg(figure, "cost-against-gain"), "Cost against gain, with 95% intervals; hollow where it may be chance."


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
