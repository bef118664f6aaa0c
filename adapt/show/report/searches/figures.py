"""The drawings of a search: trials over their fields, importance, curves, one objective against another."""

from collections.abc import Mapping, Sequence
from math import log10, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from adapt.show.curves import WIDTH
from adapt.show.drawing import INK, LINE, canvas, color, short, style, svg
from adapt.show.report.searches.curves import Curve
from adapt.show.report.searches.found import FoundSearch, FoundTrial
from adapt.show.report.tasks.figures import Drawn
from adapt.statistics.importance import Importances

AS_IT_IS, OTHERS, BEST = 0, 1, 2
"""Numbers of colours."""
LEGEND = (("best trial", BEST), ("as it is", AS_IT_IS), ("other trials; the darker, the better", OTHERS))
WIDE = 10.0
"""From this ratio of the largest to the smallest value on, an axis is logarithmic."""
AXIS = 1.7
"""Between two axes of parallel coordinates [inches]."""
CLEAR = 0.05, 0.95
"""Where on its axis the lowest and the highest value lie."""


def _look(found: FoundSearch, number: int) -> dict[str, Any]:
    """The colour and width of a trial's line."""
    if number == found.best.number:
        return {"color": color(BEST), "linewidth": 2.4, "zorder": 4}
    if number == 0:
        return {"color": color(AS_IT_IS), "linewidth": 2.0, "zorder": 3}
    ranks = {trial.number: trial.rank for trial in found.trials}
    worst = max(len(found.trials) - 1, 1)
    return {"color": color(OTHERS), "linewidth": 1.2, "alpha": 0.75 - 0.6 * ranks.get(number, worst) / worst}


def parallel_coordinates(found: FoundSearch, name: str) -> Drawn:
    """A line a trial, over an axis for each field and objective. Better is up on the objectives' axes."""
    columns = [(field, [trial.values.get(field) for trial in found.trials]) for field in found.fields]
    columns += [(objective, [trial.value(objective) for trial in found.trials]) for objective in found.objectives]
    placed = []
    with style():
        figure, axes = canvas(AXIS * len(columns) + 0.6, 3.6)
        for place, (field, values) in enumerate(columns):
            heights, ticks = _scale(values)
            if found.objectives.get(field) == "min":
                heights, ticks = [1 - height for height in heights], [(1 - height, text) for height, text in ticks]
            placed.append(heights)
            axes.axvline(place, color=LINE, linewidth=1)
            for height, text in ticks:
                axes.plot([place - 0.02, place + 0.02], [height, height], color=INK, linewidth=0.8)
                axes.text(place - 0.05, height, text, ha="right", va="center", fontsize=8, zorder=5)
            axes.text(place, 1.04, short(field.rpartition(".")[2]), ha="center", va="bottom", fontsize=9.5)
        for number, trial in enumerate(found.trials):
            look = _look(found, trial.number)
            axes.plot(range(len(columns)), [heights[number] for heights in placed], **look)
        axes.set_xlim(-0.55, len(columns) - 0.5)
        axes.set_ylim(-0.02, 1.12)
        axes.set_axis_off()
        caption = f"Every trial as a line over its values. On {', '.join(found.objectives)} better is up."
        return svg(figure, f"trials-{name}"), caption


def _scale(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each value lies on its axis, from 0 to 1, and the marks of the axis. A missing number is nowhere."""
    (low, high), numbers = CLEAR, [value for value in values if value is not None]
    if not numbers or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
        names = sorted({str(value) for value in values})
        step = (high - low) / max(len(names) - 1, 1)
        places = {name: low + step * number for number, name in enumerate(names)}
        return [places[str(value)] for value in values], [(place, short(text)) for text, place in places.items()]
    least, most = min(numbers), max(numbers)
    is_log = least > 0 and most / least >= WIDE
    start, end = (log10(least), log10(most)) if is_log else (least, most)

    def at(value: float | None) -> float:
        if value is None:
            return nan
        share = ((log10(value) if is_log else value) - start) / (end - start) if end > start else 0.5
        return low + (high - low) * share

    middle = 10 ** ((start + end) / 2) if is_log else (start + end) / 2
    shown = sorted(set(numbers)) if len(set(numbers)) <= 5 else [least, middle, most]
    return [at(value) for value in values], [(at(value), f"{value:.3g}") for value in shown]


def importance_figure(known: Importances, name: str) -> Drawn:
    """The share of each field in the variance, with its interval."""
    with style():
        figure, axes = canvas(WIDTH, 0.9 + 0.42 * len(known.fields))
        for place, each in enumerate(known.fields):
            axes.plot([100 * each.low, 100 * each.high], [place, place], color=color(OTHERS), linewidth=2)
            axes.plot(100 * each.share, place, "o", color=color(OTHERS), markersize=8)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(range(len(known.fields)), [short(each.field.rpartition(".")[2]) for each in known.fields])
        axes.set_ylim(len(known.fields) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="both", length=0)
        axes.set_xlabel("share of the variance [%]")
        return svg(figure, f"importance-{name}"), "How much each field mattered, with 95% intervals over the trials."


def curves_figure(
    found: FoundSearch, curves: Mapping[int, Curve], axis: str, measured: str, caption: str, name: str
) -> Drawn:
    """A line a trial, over steps or epochs."""
    with style():
        figure, axes = canvas(WIDTH, 2.9)
        for number, curve in curves.items():
            look = _look(found, number) | ({"marker": "o", "markersize": 3.5} if len(curve) < 12 else {})
            axes.plot(*zip(*curve, strict=True), **look)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel(axis)
        axes.set_ylabel(measured)
        return svg(figure, f"{caption.partition(':')[0]}-{name}"), caption


def front_figure(found: FoundSearch, name: str) -> Drawn:
    """The first objective against the second; trials that no other is better than are joined."""
    (first, way), (second, _), *_ = found.objectives.items()
    front = sorted(found.front, key=lambda trial: trial.value(first), reverse=way == "max")
    with style():
        figure, axes = canvas(1.1 * WIDTH, 3.4)
        axes.plot(*_points(front, first, second), color=INK, linewidth=1.4, zorder=1)
        for trial in found.trials:
            look = _look(found, trial.number)
            _bars(axes, trial, first, second, look)
            fill = look["color"] if trial in front else "none"
            axes.plot(
                trial.value(first), trial.value(second), "o", markersize=7, markerfacecolor=fill, color=look["color"]
            )
        axes.set_xlabel(first)
        axes.set_ylabel(second)
        return svg(figure, f"front-{name}"), "One objective against the other; filled and joined where none is better."


def _points(trials: Sequence[FoundTrial], first: str, second: str) -> tuple[list[float], list[float]]:
    return [trial.value(first) for trial in trials], [trial.value(second) for trial in trials]


def _bars(axes: Axes, trial: FoundTrial, first: str, second: str, look: Mapping[str, Any]) -> None:
    """The intervals of both objectives, faintly, as far as they have one."""
    x, y = trial.value(first), trial.value(second)
    faint = {"color": look["color"], "linewidth": 1, "alpha": 0.35}
    for name, is_level in ((first, True), (second, False)):
        low, high = trial.figures[name].get("low"), trial.figures[name].get("high")
        if low is not None and high is not None:
            axes.plot(*(([low, high], [y, y]) if is_level else ([x, x], [low, high])), **faint)
