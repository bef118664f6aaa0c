"""Drawings of sequences: losses over the domains."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from adapt.show.curves import WIDTH
from adapt.show.drawing import canvas, color, short, style, svg
from adapt.show.report.sequences.runs import Sequences, cells_of
from adapt.show.report.tasks.figures import Drawn
from adapt.statistics.continual import Matrix

COLORS = 7
"""Number of colours for domains; general text has that of the baseline, 0."""
CROWDED = 40
"""So many letters below an axis fit beside each other."""


def legend(sequences: Sequences, domains: Sequence[str]) -> list[tuple[str, int]]:
    """Held-out texts and the numbers of their colours, domains first."""
    texts = {name for runs in sequences.methods.values() for run in runs for name in run.losses.columns}
    return [(name, _color(name, domains)) for name in sorted(texts, key=lambda name: (name not in domains, name))]


def _color(name: str, domains: Sequence[str]) -> int:
    return 1 + domains.index(name) % COLORS if name in domains else 0


def losses(sequences: Sequences, order: tuple[str, ...], domains: Sequence[str]) -> list[Drawn]:
    """A panel for each method: held-out loss of each text as domains are learnt, all on one scale, means over seeds.

    Args:
        sequences: of the study.
        order: of the runs shown.
        domains: the position of each is the number of its colour.
    """
    shown = {name: runs for name in sequences.methods if (runs := sequences.of(name, order)) and runs[0].losses.columns}
    values = [cell for runs in shown.values() for run in runs for row in run.losses.rows for cell in row.values()]
    if not values:
        return []
    room = 0.06 * (max(values) - min(values) or 1)
    limits = min(values) - room, max(values) + room
    return [(_losses(name, [run.losses for run in runs], order, domains, limits), name) for name, runs in shown.items()]


def _losses(
    method: str, by_run: Sequence[Matrix], order: Sequence[str], domains: Sequence[str], limits: tuple[float, float]
) -> str:
    with style():
        figure, axes = canvas(WIDTH, 2.9)
        for name, number in by_run[0].columns.items():
            known = [(step, float(np.mean(values))) for step, values in enumerate(cells_of(by_run, name)) if values]
            shade, learnt = color(_color(name, domains)), 0 if number is None else number + 1
            axes.plot(*_xy([point for point in known if point[0] <= learnt]), "--", color=shade, linewidth=1.2)
            axes.plot(*_xy([point for point in known if point[0] >= learnt]), "-", color=shade, linewidth=2)
            axes.plot(*_xy([point for point in known if point[0] == learnt]), "o", color=shade, markersize=6)
        _name_steps(axes, ["start", *order])
        axes.set_ylim(*limits)
        axes.set_ylabel("held-out loss [nats]")
        return svg(figure, f"sequence-losses-{method}-{'-'.join(order)}")


def _xy(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _name_steps(axes: Axes, names: Sequence[str]) -> None:
    crowded = sum(map(len, names)) > CROWDED
    labels = [short(name) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.grid(False, axis="x")
