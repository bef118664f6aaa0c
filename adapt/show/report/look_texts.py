"""Shows the looks (interim analyses) of a sequential study, as sentences, a table, and a drawing per task."""

from collections.abc import Callable, Sequence

import numpy as np

from adapt.show.blocks import NONE, Cell, Table, worded_interval
from adapt.show.drawing import INK, WIDTH, canvas, color, style, svg
from adapt.statistics.comparison import Comparison, p_value
from adapt.statistics.looks import needs_more_examples, seeds_for_verdict
from adapt.statistics.power import MOST_SEEDS
from adapt.statistics.seeds import Conclusion, Ending, Looked, endings

Change = Callable[[float], str]
"""Function that formats a difference."""
WORDS: dict[Conclusion, str] = {
    "better": "better",
    "worse": "worse",
    "equal": "no difference that matters",
    "open": "undecided",
}


def comparison_at(ending: Ending) -> Comparison:
    """Returns the comparison at a look: its difference, standard error, p, and repeated interval."""
    seen = ending.seen
    return Comparison(
        *(seen.difference, seen.low, seen.high, seen.error, seen.p, None, tuple(seen.over), np.empty(0), {})
    )


def ending_text(ending: Ending, change: Change, unit: str = "", is_paired: bool = False) -> str:
    """Describes how a comparison ended, in one sentence without a full stop.

    An example: `Better at look 2 of 4, with 10 seeds per side: +4.1 macro-F1, repeated 95% CI +1.2 to +7.0, p = .001
    (level .003)`.

    Args:
        ending: the latest look at the comparison.
        change: formats a difference.
        unit: unit of the difference, such as `macro-F1 on acl_arc`.
        is_paired: whether the seeds of both sides are paired.
    """
    seen, looked = ending.seen, ending.looked
    seeds = f"{ending.seeds} {'pairs of seeds' if is_paired else 'seeds per side'}"
    when = f"at look {looked.look} of {len(looked.seeds)}, with {seeds}"
    text = f"{WORDS[seen.conclusion]} {when}: {change(seen.difference)}{f' {unit}' if unit else ''}"
    text += worded_interval(seen.low, seen.high, change, ", repeated 95% CI ")
    if seen.p is None:
        text += "; significance cannot be tested, because the values do not vary"
    else:
        text += f", {p_value(seen.p)} (level {p_value(seen.level, bare=True)})"
    if seen.conclusion == "equal":
        text += f", within the margin of {change(looked.margin).removeprefix('+')}"
    if seen.conclusion == "open":
        text += f"; no further look is planned{_seeds_for_verdict(ending)}" if ending.is_last else "; more seeds follow"
    return text[0].upper() + text[1:]


def _seeds_for_verdict(ending: Ending) -> str:
    """Says how many seeds a new study would need for a verdict. Empty if nothing varies, so that this is unknown."""
    looked = ending.looked
    tests = looked.recipes - looked.significant, looked.recipes - looked.equal
    if not ending.seen.is_known:
        return ""
    if needs_more_examples(ending.seen, looked.margin, *tests):
        return "; no number of seeds gives a verdict: a new study needs more test examples or a wider margin"
    needed = seeds_for_verdict(ending.seen, ending.seeds, looked.margin, *tests)
    return (
        f"; a new study needs {f'about {needed}' if needed else f'more than {MOST_SEEDS}'} seeds per side for a verdict"
    )


def looks_table(looks: Sequence[Looked], change: Callable[[str], Change]) -> Table:
    """Makes a table with the verdict of each comparison and the look at which it ended.

    Args:
        looks: the finished looks, with earlier looks first.
        change: returns, for the name of a metric, the function that formats a difference.
    """
    rows: list[list[Cell | str]] = []
    for (row, figure, recipe), ending in endings(looks).items():
        seen, formed = ending.seen, change(figure)
        rows.append(
            [
                f"{row}, {recipe}",
                Cell(WORDS[seen.conclusion], strong=seen.conclusion != "open"),
                f"{ending.looked.look} of {len(ending.looked.seeds)}",
                f"{ending.seeds}",
                formed(seen.difference),
                worded_interval(seen.low, seen.high, formed) or NONE,
                NONE if seen.p is None else p_value(seen.p, bare=True),
                p_value(seen.level, bare=True),
                formed(ending.looked.margin).removeprefix("+"),
            ]
        )
    spending = (
        looks[0].spending.replace("_fleming", "-Fleming").replace("obrien", "O'Brien").replace("pocock", "Pocock")
    )
    header = [
        "comparison",
        "verdict",
        "look",
        "seeds per side",
        "difference",
        "repeated interval",
        "p",
        "level",
        "margin",
    ]
    note = (
        "A look is an interim analysis. Each row shows a comparison at the look at which it ended, or at its latest "
        f"look. Repeated 95% intervals hold at all looks together ({spending} spending, Lan and DeMets 1983); they are "
        "not corrected for the number of recipes. A difference is significant if p is below the level of the look. "
        "There is no difference that matters if the interval at the level of the look is within the margin. Holm's "
        "method corrects both levels for the number of recipes. For each task or metric, over all looks and recipes, "
        "at most 5% of studies have a false verdict of better or worse, and at most 2.5% have a false verdict of no "
        "difference that matters."
    )
    return Table(header, rows, "Verdicts of the sequential study", note)


def look_drawings(
    looks: Sequence[Looked], recipes: Sequence[str], scale: Callable[[str], tuple[float, str]]
) -> list[tuple[str, str]]:
    """Draws each recipe's difference from the baseline by number of seeds, with repeated intervals and the margin.

    Args:
        looks: the finished looks, with earlier looks first.
        recipes: names of all recipes. Recipe i, from 1, has colour i, because 0 is the colour of the baseline.
        scale: returns, for the name of a metric, the factor and the unit of the shown differences.
    """
    rows = dict.fromkeys((looked.row, looked.figure) for looked in looks)
    return [
        (_drawn([looked for looked in looks if (looked.row, looked.figure) == key], recipes, *scale(key[1])), key[0])
        for key in rows
        if any(seen.low is not None for looked in looks for seen in looked.found.values())
    ]


def _drawn(looks: Sequence[Looked], recipes: Sequence[str], factor: float, unit: str) -> str:
    with style():
        figure, axes = canvas(WIDTH, 2.6)
        margin = factor * looks[0].margin
        axes.axhspan(-margin, margin, color=INK, alpha=0.08, linewidth=0)
        axes.axhline(0, color=INK, linewidth=1)
        for number, recipe in enumerate(recipes):
            shade = color(number + 1)
            seen = [(looked.seeds[looked.look - 1], looked.found[recipe]) for looked in looks if recipe in looked.found]
            # moves the points apart a little, so that the recipes' intervals do not hide each other
            places = [seeds + 0.35 * (number - (len(recipes) - 1) / 2) for seeds, _ in seen]
            axes.plot(places, [factor * each.difference for _, each in seen], color=shade, linewidth=1)
            for place, (_, each) in zip(places, seen, strict=True):
                if each.low is not None and each.high is not None:
                    axes.plot([place, place], [factor * each.low, factor * each.high], color=shade, linewidth=2)
                fill = "none" if each.conclusion == "open" else shade
                axes.plot(place, factor * each.difference, "o", color=shade, markerfacecolor=fill, markersize=6)
        axes.set_xticks(looks[0].seeds)
        axes.set_xlabel("seeds per side")
        axes.set_ylabel(f"difference [{unit}]")
        return svg(figure, f"looks-{looks[0].row}-{looks[0].figure}")
