"""Drawings of sequences: losses over the domains, and loss on the domains against loss on general text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from adapt.show.blocks import Figures, FindingBlock
from adapt.show.drawing import INK, WIDTH, canvas, color, short, style, svg
from adapt.show.report.sequence_runs import Sequences, cells_of
from adapt.show.report.task_comparison import nats
from adapt.show.report.task_figures import Drawn
from adapt.show.report.tradeoffs import FEWEST, knee, pareto_front
from adapt.statistics.continual_metrics import Matrix
from adapt.statistics.seeds import spread

COLORS = 7
"""Number of colours for domains. General text has colour 0, which other figures use for the baseline."""
CROWDED = 40
"""Maximum total number of characters of the labels below an axis. Longer labels are rotated."""


def legend(sequences: Sequences, domains: Sequence[str]) -> list[tuple[str, int]]:
    """Lists the held-out texts with the numbers of their colours. Domains come first."""
    texts = {name for runs in sequences.methods.values() for run in runs for name in run.losses.columns}
    return [(name, _color(name, domains)) for name in sorted(texts, key=lambda name: (name not in domains, name))]


def _color(name: str, domains: Sequence[str]) -> int:
    return 1 + domains.index(name) % COLORS if name in domains else 0


def losses(sequences: Sequences, order: tuple[str, ...], domains: Sequence[str]) -> list[Drawn]:
    """Draws a panel per method: the loss on each held-out text as domains are learnt. Losses are means over seeds.

    Args:
        sequences: all sequences of the study.
        order: order of learning of the runs that are drawn.
        domains: the domains. The position of a domain in this list is the number of its colour.
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
        axes.set_ylabel("held-out loss [nats per token]")
        return svg(figure, f"sequence-losses-{method}-{'-'.join(order)}")


def _xy(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _name_steps(axes: Axes, names: Sequence[str]) -> None:
    crowded = sum(map(len, names)) > CROWDED
    labels = [short(name) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.grid(False, axis="x")


LOSSES = "loss_average", "general_change"
"""Figures on the axes of the drawing: average loss on the domains, and change of the loss on general text."""
SIDES = {-1: "right", 0: "center", 1: "left"}, {-1: "top", 0: "center", 1: "bottom"}
"""Text alignment of a name at each side of its point: horizontal (left or right) and vertical (below or above)."""
PLACES = [
    (distance, across, up)
    for distance in (4, 12, 22)
    for across, up in ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (0, 1), (0, -1), (-1, 0))
]
"""Possible positions of a name around its point: distance [points], horizontal side and vertical side."""
FAR = 3
"""Maximum distance of a drawn point from the quartiles, in interquartile ranges. Points farther away are only listed
below the drawing."""


@dataclass(frozen=True)
class MethodReached:
    """Losses of a method, as means over seeds."""

    method: str
    point: tuple[float, float]
    """Mean loss over domains after the last domain, and change of the loss on general text [nats per token]."""
    intervals: tuple[tuple[float, float], tuple[float, float]]
    """95% interval of each of the two losses. With one seed, both ends equal the loss."""
    is_one_model: bool
    """Whether the method trains a single model on all domains, one after another."""


def reached(sequences: Sequences) -> list[MethodReached]:
    """Returns the methods for which both losses are known."""
    found = []
    for method in sequences.methods:
        both = [sequences.values(method, name) for name in LOSSES]
        if all(both):
            over = [spread(values) for values in both]
            ends = [
                (each.mean if each.low is None else each.low, each.mean if each.high is None else each.high)
                for each in over
            ]
            is_one = sequences.mode(method) == "continual"
            found.append(MethodReached(method, (over[0].mean, over[1].mean), (ends[0], ends[1]), is_one))
    return found


def front_of(methods: Sequence[MethodReached]) -> tuple[list[MethodReached], MethodReached | None]:
    """Returns the sequential methods that no other method beats on both losses, and the knee of the front."""
    rivals = [each for each in methods if each.is_one_model]
    front = [rivals[place] for place in pareto_front([each.point for each in rivals])]
    place = knee([each.point for each in front])
    return front, None if place is None else front[place]


def front_verdict(sequences: Sequences) -> list[FindingBlock]:
    """Makes findings that name the methods on the front. The list is empty if there are too few methods."""
    methods = reached(sequences)
    front, bend = front_of(methods)
    rivals = sum(each.is_one_model for each in methods)
    if rivals < FEWEST:
        return []
    names = "; ".join(each.method for each in front)
    are = "is" if len(front) == 1 else "are"
    text = f"{len(front)} of {rivals} methods {are} Pareto-optimal (no other method is better on both losses): {names}"
    if bend is None:
        return [FindingBlock("Domains against general text", f"{text}. There is no single best compromise.", "open")]
    loss, change = bend.point
    ends = f"loss on the domains {loss:.3f}, on general text {nats(change, 3)}"
    return [
        FindingBlock(
            "Domains against general text",
            f"{text}. The best compromise (the knee) is {bend.method}: {ends} nats per token.",
        )
    ]


def sequence_front(sequences: Sequences) -> Figures | None:
    """Draws both losses of each method. Returns None if there are too few methods."""
    methods = reached(sequences)
    if len(methods) < FEWEST:
        return None
    front, bend = front_of(methods)
    shown = [each for each in methods if each in front or not _is_far(each, methods)]
    about = (
        "Held-out loss at the end, the mean over domains, against the change on general text; means over seeds with "
        "95% intervals; lower is better. The dark line is the front: no method that learns domain after domain is "
        "better on both. Hollow: models of their own, or all text at once."
    )
    if left := [f"{each.method} ({each.point[0]:.2f}, {nats(each.point[1])})" for each in methods if each not in shown]:
        about += f" Too far away to be drawn: {'; '.join(left)}."
    return Figures([(_drawing(shown, front, bend), about)])


def _is_far(one: MethodReached, methods: Sequence[MethodReached]) -> bool:
    for axis in (0, 1):
        low, high = np.quantile([each.point[axis] for each in methods], [0.25, 0.75])
        if not low - FAR * (high - low) <= one.point[axis] <= high + FAR * (high - low):
            return True
    return False


def _drawing(methods: Sequence[MethodReached], front: Sequence[MethodReached], bend: MethodReached | None) -> str:
    with style():
        figure, axes = canvas(1.5 * WIDTH, 1.1 * WIDTH)
        for place, each in enumerate(methods):
            (x, y), (across, up), shade = each.point, each.intervals, color(place)
            axes.plot(across, (y, y), color=shade, linewidth=1, alpha=0.6)
            axes.plot((x, x), up, color=shade, linewidth=1, alpha=0.6)
            fill = shade if each.is_one_model else "none"
            axes.plot(x, y, "o", color=shade, markerfacecolor=fill, markersize=6)
        axes.plot(*zip(*(each.point for each in front), strict=True), color=INK, linewidth=1.4, zorder=1)
        if bend:
            axes.plot(*bend.point, "o", color=INK, markersize=14, fillstyle="none")
        axes.set_xlabel("loss on the domains at the end [nats per token]")
        axes.set_ylabel("change on general text [nats per token]")
        _name(figure, axes, methods)
        return svg(figure, "domains-against-general-text")


def _name(figure: Figure, axes: Axes, methods: Sequence[MethodReached]) -> None:
    """Writes each name at the position that covers the fewest other names and points.

    Nearer positions are preferred.
    """
    figure.draw_without_rendering()
    points = [axes.transData.transform(each.point) for each in methods]
    taken: list[Bbox] = []
    for each in methods:
        tried: list[tuple[int, int, Annotation, Bbox]] = []
        for distance, across, up in PLACES:
            text = axes.annotate(
                short(each.method),
                each.point,
                (distance * across, distance * up),
                textcoords="offset points",
                ha=SIDES[0][across],
                va=SIDES[1][up],
                fontsize=8,
            )
            box = text.get_window_extent()
            hidden = sum(box.overlaps(other) for other in taken) + sum(box.contains(*point) for point in points)
            tried.append((hidden, len(tried), text, box))
        _, best, _, box = min(tried, key=lambda one: one[:2])
        taken.append(box)
        for _, place, text, _ in tried:
            if place != best:
                text.remove()
