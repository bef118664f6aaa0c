"""Heatmaps of what was measured after each domain."""

from collections.abc import Sequence

import numpy as np

from adapt.show.blocks import NONE, Cell, Table
from adapt.show.cells import darkness
from adapt.show.report.sequences.runs import SequenceRun, cells_of
from adapt.statistics.continual import Matrix
from adapt.statistics.seeds import spread

NOTE = "Mean over seeds, ± standard deviation; bold: just learnt; the stronger the colour, the better in its column."


def matrices(runs: Sequence[SequenceRun], title: str) -> list[Table]:
    """Scores and losses after each domain, a row each.

    Args:
        runs: of one method in one order, one a seed.
        title: the order.
    """
    scores, losses = [run.scores for run in runs], [run.losses for run in runs]
    titles = f"{title}: scores x 100", f"{title}: held-out loss, nats a predicted token"
    titled = zip((scores, losses), titles, strict=True)
    return [_heatmap(by_run, runs[0].order, name) for by_run, name in titled if by_run[0].columns]


def _heatmap(by_run: Sequence[Matrix], order: Sequence[str], title: str) -> Table:
    owners = dict(sorted(by_run[0].columns.items(), key=lambda column: len(order) if column[1] is None else column[1]))
    columns = [_column(by_run, name) for name in owners]
    names = ["as it came", *(f"after {domain}" for domain in order)]
    rows = [[name, *cells] for name, *cells in zip(names, *columns, strict=True) if any(c.text != NONE for c in cells)]
    return Table(["", *(_header(name, number, order) for name, number in owners.items())], rows, title, NOTE)


def _header(name: str, number: int | None, order: Sequence[str]) -> str:
    """Names a column, with its domain if the name does not say it."""
    return name if number is None or order[number] == name else f"{name} ({order[number]})"


def _column(by_run: Sequence[Matrix], name: str) -> list[Cell]:
    cells = cells_of(by_run, name)
    number, gain = by_run[0].columns[name], by_run[0].gain
    measured = {row: float(np.mean(values)) for row, values in enumerate(cells) if values}
    shades = dict(zip(measured, darkness([-gain * mean for mean in measured.values()] or [0.0]), strict=False))
    return [
        Cell(_text(measured[row], gain), _deviation(values, gain), strong=row - 1 == number, shade=shades[row])
        if values
        else Cell(NONE)
        for row, values in enumerate(cells)
    ]


def _text(value: float, gain: int) -> str:
    return f"{100 * value:.1f}" if gain > 0 else f"{value:.3f}"


def _deviation(values: Sequence[float], gain: int) -> str:
    deviation = spread(values).deviation
    # one seed has no deviation, and the model as it came is the same for all seeds
    return f"± {_text(deviation, gain)}" if deviation else ""
