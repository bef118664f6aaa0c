"""Shows hyperparameter searches in the report: sentences for the verdict, and a section with tables and drawings."""

from collections.abc import Mapping, Sequence
from math import log10, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from adapt.show.blocks import NONE, Block, Cell, Figures, FindingBlock, Folded, Table, TextBlock, interval
from adapt.show.drawing import INK, LINE, WIDTH, canvas, color, short, style, svg
from adapt.show.report.study_results import Curve, FoundSearch, FoundTrial, loss_curves, score_curves, turn_curves
from adapt.show.report.task_comparison import hours
from adapt.show.report.task_tables import Drawn
from adapt.statistics.hyperparameter_importance import Importances, importances
from adapt.statistics.seeds import LEVEL

SHOWN_TRIALS = 12
"""Number of trials in the table. The other trials are in a folded table."""
SHOWN_SEARCHES = 3
"""Number of searches without fresh seeds up to which the verdict describes each search."""
FEW_SEEDS = "Five seeds or fewer cannot show a significant difference."
LUCK = "The best of many trials is partly best by chance: only fresh seeds can show its gain."
FRESH = {"best": "best trial", "as_it_is": "your configuration", "difference": "difference"}
"""Columns of the table of runs with fresh seeds, keyed by their names in the record."""
FRONT = "*"
"""Mark of Pareto-optimal trials. A trial is Pareto-optimal if each other trial is worse in at least one objective."""


def search_verdicts(searches: Sequence[FoundSearch]) -> list[FindingBlock]:
    """Describes the gain of each search: on dev when the best trial was chosen, and, if measured, with fresh seeds.

    If there are many searches without fresh seeds, one sentence describes these.
    """
    chosen_on_dev = [found for found in searches if not found.confirmed]
    if len(chosen_on_dev) <= SHOWN_SEARCHES:
        return [_verdict(found) for found in searches]
    changed = sum(found.best is not found.as_it_is for found in chosen_on_dev)
    text = (
        f"In {changed} of {len(chosen_on_dev)} searches, the best trial on dev differs from your configuration. {LUCK}"
        " The section on searches describes each."
    )
    return [*(_verdict(found) for found in searches if found.confirmed), FindingBlock("Searches on dev", text, "plain")]


def _verdict(found: FoundSearch) -> FindingBlock:
    return FindingBlock(f"Best values of {found.label}", _gained(found), _tone(found))


def _gained(found: FoundSearch) -> str:
    objective, best, as_it_is = found.first, found.best, found.as_it_is
    if best is as_it_is and not _breaks_bound(found):
        return f"Of {_compared(found)}, none was better on dev than your configuration."
    chosen = f"Of {_compared(found)}, trial {best.number} is best on dev"
    if _breaks_bound(found):
        chosen = f"Of {_compared(found)}, none keeps {_bound(found)}; trial {best.number} is nearest"
    chosen += f", with {objective} {best.value(objective):.4g}"
    if best is as_it_is:
        return f"{chosen}. It is your configuration."
    if as_it_is:
        chosen += f", compared with {as_it_is.value(objective):.4g} for your configuration"
    if not found.confirmed:
        return f"{chosen}. {LUCK}"
    figures, seeds = found.confirmed["fresh"], len(found.confirmed["seeds"])
    if found.confirmed["gained"] is None:
        return f"{chosen}. Your configuration failed, so there is nothing to compare the {seeds} fresh seeds with."
    gains = "; ".join(f"{name} {_difference(figure['difference'])}" for name, figure in figures.items())
    selection = found.confirmed["selection"]
    luck = (
        ""
        if selection is None
        else f" {selection:+.4f} of the gain on dev was chance, because the best of many trials was chosen."
    )
    few = f" {FEW_SEEDS}" if _are_few(seeds) else ""
    kept = ""
    if (meets := found.confirmed.get("meets_bound")) is not None:
        value = found.confirmed["fresh"][found.confirmed["bound"]["metric"]]["best"]["value"]
        kept = f" It {'keeps' if meets else 'does not keep'} {_bound(found)}: {value:.4g}."
    return f"{chosen}. With {seeds} fresh seeds, this trial changes {gains}.{kept}{luck}{few}"


def _compared(found: FoundSearch) -> str:
    """Names the trials among which the best one was chosen: those that keep the bound, if any does."""
    finalists = [trial for trial in found.trials if trial.is_finalist]
    trials = f"{len(found.rows)} trials"
    named = f"{len(finalists)} finalists ({trials})" if finalists else trials
    if not found.record.metrics.get("bound") or _breaks_bound(found):
        return named
    beyond = found.record.metrics["beyond"]
    within = sum(trial.number not in beyond for trial in finalists or found.trials)
    return f"the {within} of {named} that keep {_bound(found)}"


def _breaks_bound(found: FoundSearch) -> bool:
    """Returns whether no compared trial keeps the bound of the search, so that the nearest trial was chosen."""
    return found.best.number in (found.record.metrics.get("beyond") or [])


def _bound(found: FoundSearch) -> str:
    bound = found.record.metrics["bound"]
    return f"{bound['metric']} within {bound['limit']:g}"


def _are_few(seeds: int) -> bool:
    """Returns whether this number of seeds cannot show significance.

    With n seeds, p is at least 2^(1 - n). It has this value if the differences of all seeds have the same sign.
    """
    return bool(2.0 ** (1 - seeds) >= LEVEL)


def _difference(figure: Mapping[str, float | None]) -> str:
    ends = interval(figure["low"], figure["high"], "+.4f")
    return f"by {figure['value']:+.4f}" + (f" ({ends})" if ends else "")


def _tone(found: FoundSearch) -> str:
    if not found.confirmed or found.confirmed["gained"] is None:
        return "plain"
    if found.confirmed.get("meets_bound") is False:
        return "worse"
    if _are_few(len(found.confirmed["seeds"])):
        return "open"
    figure, sign = (
        found.confirmed["fresh"][found.first]["difference"],
        1 if found.objectives[found.first] == "max" else -1,
    )
    ends = sorted(sign * (figure["value"] if end is None else end) for end in (figure["low"], figure["high"]))
    return "better" if ends[0] > 0 else "worse" if ends[1] < 0 else "open"


def search_blocks(searches: Sequence[FoundSearch]) -> list[Block]:
    """Makes the blocks of the section on searches, one search after another."""
    return [block for number, found in enumerate(searches) for block in _blocks(found, str(number))]


def _blocks(found: FoundSearch, name: str) -> list[Block]:
    told = [trial for trial in found.trials if trial.number or None not in map(trial.values.get, found.fields)]
    columns = {field: [trial.values.get(field) for trial in told] for field in found.fields}
    known = importances(columns, [trial.value(found.first) for trial in told])
    drawings = [importance_figure(known, name)] if known else []
    drawings += _curves(found, name)
    drawings += [front_figure(found, name)] if len(found.objectives) > 1 else []
    return [
        *_tables(found),
        *_fresh_tables(found),
        Figures([parallel_coordinates(found, name)], LEGEND, wide=True),
        *([Figures(drawings)] if drawings else []),
        TextBlock(_said_of(known)),
    ]


def _said_of(known: Importances | None) -> str:
    if known is None:
        return "There are too few different trials to say which field mattered."
    doubt = "" if known.explained > 0 else ", so the shares are not informative"
    return (
        "Importance: permutation importance of a random forest."
        f" The forest explains {100 * max(known.explained, 0):.0f}% of the variance of trials that it has not seen"
        f"{doubt}."
        " A field's share includes its interactions with other fields, so shares may add up to more than 100%."
    )


def _curves(found: FoundSearch, name: str) -> list[Drawn]:
    kinds = (
        (turn_curves(found), "steps", found.first, f"Search: {found.first} each time that a trial was measured"),
        (loss_curves(found), "step", "training loss [nats per token]", "Training: loss by step"),
        (score_curves(found), "epoch", "score on dev", "Fine-tuning: score on dev by epoch"),
    )
    return [
        curves_figure(found, curves, axis, measured, caption, name)
        for curves, axis, measured, caption in kinds
        if curves
    ]


def _tables(found: FoundSearch) -> list[Block]:
    several = len(found.objectives) > 1
    header = ["trial", *found.objectives, *(field for field in found.fields)]
    rows = [_row(found, number, several) for number in range(len(found.trials))]
    metrics = found.record.metrics
    note = (
        f"Measured on dev, with 95% intervals if there are several seeds. The {len(found.rows)} trials have"
        f" {metrics['stages']} stages and took {hours(metrics['device_hours'], 'device-')}. {metrics['shared']} times a"
        " trial reused a stage of another trial."
    )
    if seeds := metrics.get("finalist_seeds"):
        note += f" Only finalists ran with tune.finalist_seeds ({', '.join(map(str, seeds))})."
    note += f" {FRONT} marks trials for which no other trial is at least as good in every objective." if several else ""
    blocks: list[Block] = [Table(header, rows[:SHOWN_TRIALS], f"{found.label}: trials of {metrics['job']}", note)]
    if rest := rows[SHOWN_TRIALS:]:
        blocks.append(Folded(f"More trials: {len(rest)}", [Table(header, rest)]))
    measured = {trial.number for trial in found.trials}
    others: list[list[Cell | str]] = [
        [
            str(row["number"]),
            _outcome(row),
            ", ".join(f"{name} {_shown(value)}" for name, value in row["values"].items()),
        ]
        for row in found.rows
        if row["number"] not in measured
    ]
    if others:
        title = f"Trials that failed or were stopped early: {len(others)}"
        blocks.append(Folded(title, [Table(["trial", "why", "values"], others, words=True)]))
    return blocks


def _fresh_tables(found: FoundSearch) -> list[Block]:
    """Makes tables that compare the best trial and the unchanged configuration with fresh seeds."""
    if not found.confirmed:
        return []
    rows: list[list[Cell | str]] = [
        [name, *(_fresh_cell(figure[place]) for place in FRESH)] for name, figure in found.confirmed["fresh"].items()
    ]
    seeds = ", ".join(map(str, found.confirmed["seeds"]))
    note = f"Means over seeds {seeds}, which no trial used, with 95% intervals. The difference is paired by seed."
    return [Table(["figure", *FRESH.values()], rows, f"{found.label}: with fresh seeds", note)]


def _fresh_cell(figure: Mapping[str, float | None] | None) -> Cell:
    return Cell(f"{figure['value']:.4f}", _interval(figure)) if figure else Cell(NONE)


def _row(found: FoundSearch, place: int, several: bool) -> list[Cell | str]:
    trial = found.trials[place]
    is_best = trial.number == found.best.number
    name = f"{trial.number}, unchanged" if trial.number == 0 else str(trial.number)
    name += ", finalist" if trial.is_finalist else ""
    mark = FRONT if several and trial in found.front else ""
    figures = [
        Cell(f"{trial.value(name):.4f}", _interval(trial.figures[name]), strong=is_best) for name in found.objectives
    ]
    values = [_shown(trial.values.get(field)) for field in found.fields]
    return [Cell(name, mark=mark, strong=is_best), *figures, *values]


def _interval(figure: Mapping[str, float | None]) -> str:
    low, high = figure.get("low"), figure.get("high")
    return interval(low, high, ".4f")


def _outcome(row: Mapping[str, Any]) -> str:
    return f"failed: {row['error']}" if not row["figures"] else f"stopped after {row['steps']} steps"


def _shown(value: Any) -> str:
    return NONE if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


AS_IT_IS, OTHERS, BEST = 0, 1, 2
"""Numbers of the colours of the unchanged configuration, of other trials and of the best trial."""
LEGEND = (("best trial", BEST), ("your configuration", AS_IT_IS), ("other trials, darker is better", OTHERS))
WIDE = 10.0
"""Minimum ratio of the largest to the smallest value for which an axis is logarithmic."""
AXIS = 1.7
"""Distance between two axes in a figure of parallel coordinates [inches]."""
CLEAR = 0.05, 0.95
"""Positions of the lowest and of the highest value on an axis, as fractions of the axis length."""


def _look(found: FoundSearch, number: int) -> dict[str, Any]:
    """Returns the colour and the width of a trial's line."""
    if number == found.best.number:
        return {"color": color(BEST), "linewidth": 2.4, "zorder": 4}
    if number == 0:
        return {"color": color(AS_IT_IS), "linewidth": 2.0, "zorder": 3}
    ranks = {trial.number: trial.rank for trial in found.trials}
    worst = max(len(found.trials) - 1, 1)
    return {"color": color(OTHERS), "linewidth": 1.2, "alpha": 0.75 - 0.6 * ranks.get(number, worst) / worst}


def parallel_coordinates(found: FoundSearch, name: str) -> Drawn:
    """Draws one line per trial across an axis per searched field and objective. On axes of objectives, up is better."""
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
        caption = f"Each line is a trial and passes through its values. Up is better for {', '.join(found.objectives)}."
        return svg(figure, f"trials-{name}"), caption


def _scale(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Returns the position of each value on an axis, from 0 to 1, and the labels of the axis.

    Missing numbers get no position.
    """
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
    """Draws the share of the variance that each field explains, with the interval of the share."""
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
        return svg(
            figure, f"importance-{name}"
        ), "Share of the variance that each field explains, with 95% intervals over the trials."


def curves_figure(
    found: FoundSearch, curves: Mapping[int, Curve], axis: str, measured: str, caption: str, name: str
) -> Drawn:
    """Draws one line per trial over steps or epochs."""
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
    """Draws the first objective against the second objective. A line joins the Pareto-optimal trials."""
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
        return svg(
            figure, f"front-{name}"
        ), "One objective against the other. The filled points on the line are Pareto-optimal trials."


def _points(trials: Sequence[FoundTrial], first: str, second: str) -> tuple[list[float], list[float]]:
    return [trial.value(first) for trial in trials], [trial.value(second) for trial in trials]


def _bars(axes: Axes, trial: FoundTrial, first: str, second: str, look: Mapping[str, Any]) -> None:
    """Draws the known intervals of a trial's two objectives as faint bars."""
    x, y = trial.value(first), trial.value(second)
    faint = {"color": look["color"], "linewidth": 1, "alpha": 0.35}
    for name, is_level in ((first, True), (second, False)):
        low, high = trial.figures[name].get("low"), trial.figures[name].get("high")
        if low is not None and high is not None:
            axes.plot(*(([low, high], [y, y]) if is_level else ([x, x], [low, high])), **faint)
