"""What searches found: sentences for the verdict, and tables and drawings for the section."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.show.blocks import NONE, Block, Cell, Figures, FindingBlock, Folded, Table, TextBlock
from adapt.show.report.searches.curves import loss_curves, score_curves, turn_curves
from adapt.show.report.searches.figures import (
    LEGEND,
    curves_figure,
    front_figure,
    importance_figure,
    parallel_coordinates,
)
from adapt.show.report.searches.found import FoundSearch
from adapt.show.report.tasks.cost import hours
from adapt.show.report.tasks.figures import Drawn
from adapt.statistics.importance import Importances, importances
from adapt.statistics.seeds import LEVEL

SHOWN_TRIALS = 12
"""Trials that a table has before the rest is folded."""
FEW_SEEDS = "Five seeds or fewer cannot show a significant difference."
FRESH = {"best": "best trial", "as_it_is": "as it is", "difference": "difference"}
"""What is told of a figure with fresh seeds, and what it is called in the table."""
FRONT = "*"
"""Stands beside trials that no other is better than in all objectives."""


def search_verdicts(searches: Sequence[FoundSearch]) -> list[FindingBlock]:
    """For each search, what was gained: on dev when the trial was chosen, and with fresh seeds where there are some."""
    return [FindingBlock(f"Best values of {found.label}", _gained(found), _tone(found)) for found in searches]


def _gained(found: FoundSearch) -> str:
    objective, best, as_it_is = found.first, found.best, found.as_it_is
    chosen = f"Of {len(found.rows)} trials the best on dev is number {best.number}"
    chosen += f", with {objective} {best.value(objective):.4g}"
    chosen += f" (as it is {as_it_is.value(objective):.4g})" if as_it_is and best is not as_it_is else ""
    if best is as_it_is:
        return f"Of {len(found.rows)} trials none was better on dev than the configuration as it is."
    if not found.confirmed:
        return f"{chosen}. The best of many was also lucky: what it gains, seeds that no trial had can say."
    figures, seeds = found.confirmed["fresh"], len(found.confirmed["seeds"])
    if found.confirmed["gained"] is None:
        return f"{chosen}. The configuration as it is failed, so what {seeds} fresh seeds say is compared with nothing."
    gains = "; ".join(f"{name} {_difference(figure['difference'])}" for name, figure in figures.items())
    selection = found.confirmed["selection"]
    luck = "" if selection is None else f" Of the gain that was seen, {selection:+.4f} was selection."
    few = f" {FEW_SEEDS}" if _are_few(seeds) else ""
    return f"{chosen}. With {seeds} fresh seeds it changes {gains}.{luck}{few}"


def _are_few(seeds: int) -> bool:
    """Whether so few seeds cannot show a significant difference: signs of n differences agree with p = 2^(1 - n)."""
    return bool(2.0 ** (1 - seeds) >= LEVEL)


def _difference(figure: Mapping[str, float | None]) -> str:
    low, high = figure["low"], figure["high"]
    interval = "" if low is None or high is None else f" ({low:+.4f} to {high:+.4f})"
    return f"by {figure['value']:+.4f}{interval}"


def _tone(found: FoundSearch) -> str:
    if not found.confirmed or found.confirmed["gained"] is None:
        return "plain"
    if _are_few(len(found.confirmed["seeds"])):
        return "open"
    figure, sign = (
        found.confirmed["fresh"][found.first]["difference"],
        1 if found.objectives[found.first] == "max" else -1,
    )
    ends = sorted(sign * (figure["value"] if end is None else end) for end in (figure["low"], figure["high"]))
    return "better" if ends[0] > 0 else "worse" if ends[1] < 0 else "open"


def search_blocks(searches: Sequence[FoundSearch]) -> list[Block]:
    """The section's blocks, search by search."""
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
    doubt = "" if known.explained > 0 else ", so the shares say nothing"
    return (
        "Importance: permutation importance of a random forest."
        f" It explains {100 * max(known.explained, 0):.0f}% of the variance of trials that it has not seen{doubt}."
        " A field's share counts what it does together with others too, so shares may add to more than 100%."
    )


def _curves(found: FoundSearch, name: str) -> list[Drawn]:
    kinds = (
        (turn_curves(found), "steps", found.first, f"Turns: {found.first} when it was judged"),
        (loss_curves(found), "step", "training loss [nats]", "Training: loss by step"),
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
        f"On dev, with 95% intervals where there are several seeds. {len(found.rows)} trials have {metrics['stages']}"
        f" stages; {metrics['shared']} times a trial found a stage that another has, too."
        f" All together took {hours(metrics['device_hours'], 'device-')}."
    )
    note += f" {FRONT} no trial is better in all objectives." if several else ""
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
        title = f"Trials that failed, or were stopped on their way: {len(others)}"
        blocks.append(Folded(title, [Table(["trial", "why", "values"], others, words=True)]))
    return blocks


def _fresh_tables(found: FoundSearch) -> list[Block]:
    """The best trial beside the configuration as it is, with fresh seeds."""
    if not found.confirmed:
        return []
    rows: list[list[Cell | str]] = [
        [name, *(_fresh_cell(figure[place]) for place in FRESH)] for name, figure in found.confirmed["fresh"].items()
    ]
    note = f"Means over seeds {', '.join(map(str, found.confirmed['seeds']))}, which no trial had, with 95% intervals."
    return [Table(["figure", *FRESH.values()], rows, f"{found.label}: with fresh seeds", note)]


def _fresh_cell(figure: Mapping[str, float | None] | None) -> Cell:
    return Cell(f"{figure['value']:.4f}", _interval(figure)) if figure else Cell(NONE)


def _row(found: FoundSearch, place: int, several: bool) -> list[Cell | str]:
    trial = found.trials[place]
    is_best = trial.number == found.best.number
    name = f"{trial.number}, as it is" if trial.number == 0 else str(trial.number)
    mark = FRONT if several and trial in found.front else ""
    figures = [
        Cell(f"{trial.value(name):.4f}", _interval(trial.figures[name]), strong=is_best) for name in found.objectives
    ]
    values = [_shown(trial.values.get(field)) for field in found.fields]
    return [Cell(name, mark=mark, strong=is_best), *figures, *values]


def _interval(figure: Mapping[str, float | None]) -> str:
    low, high = figure.get("low"), figure.get("high")
    return "" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def _outcome(row: Mapping[str, Any]) -> str:
    return f"failed: {row['error']}" if not row["figures"] else f"stopped after {row['steps']} steps"


def _shown(value: Any) -> str:
    return NONE if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
