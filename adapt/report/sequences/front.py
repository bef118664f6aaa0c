"""What methods reach on domains against what they forget of general text, and which of them no other beats on both."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from adapt.report.page.blocks import Figures, FindingBlock
from adapt.report.page.drawing import INK, canvas, color, short, style, svg
from adapt.report.sequences.runs import Sequences
from adapt.report.tasks.figures import WIDTH
from adapt.report.tasks.verdict import nats
from adapt.report.tradeoffs.front import FEWEST, knee, pareto_front
from adapt.statistics.seeds import spread

LOSSES = "loss_average", "general_change"
"""The figures that are set against each other."""
PLACES = ((6, 0, "left", "center"), (0, 6, "center", "bottom"), (0, -6, "center", "top"), (-6, 0, "right", "center"))
"""Where a name may stand beside its point: distance [points], and which of its sides is there."""


@dataclass(frozen=True)
class Reached:
    """A method's losses, means over seeds."""

    method: str
    point: tuple[float, float]
    """At the end, the mean over domains; and the change on general text [nats a predicted token]."""
    intervals: tuple[tuple[float, float], tuple[float, float]]
    """95% of each, or the point itself with one seed."""
    is_one_model: bool
    """Whether one model, which has learnt domain after domain, is behind it."""


def reached(sequences: Sequences) -> list[Reached]:
    """The methods of which both losses are known."""
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
            found.append(Reached(method, (over[0].mean, over[1].mean), (ends[0], ends[1]), is_one))
    return found


def front_of(methods: Sequence[Reached]) -> tuple[list[Reached], Reached | None]:
    """Those that learn domain after domain and that no other beats on both, by the first loss; and their knee."""
    rivals = [each for each in methods if each.is_one_model]
    front = [rivals[place] for place in pareto_front([each.point for each in rivals])]
    place = knee([each.point for each in front])
    return front, None if place is None else front[place]


def front_verdict(sequences: Sequences) -> list[FindingBlock]:
    """One sentence, where there are enough methods for a front."""
    methods = reached(sequences)
    front, bend = front_of(methods)
    rivals = sum(each.is_one_model for each in methods)
    if rivals < FEWEST:
        return []
    names = "; ".join(each.method for each in front)
    text = f"Of {rivals} methods, {len(front)} are beaten on both by none ({names})"
    if bend is None:
        return [FindingBlock("Domains against general text", f"{text}, and their front has no knee.", "open")]
    loss, change = bend.point
    ends = f"loss on the domains {loss:.3f}, on general text {nats(change, 3)}"
    return [FindingBlock("Domains against general text", f"{text}; the knee is {bend.method}: {ends}.")]


def front_figure(sequences: Sequences) -> Figures | None:
    """The drawing; None where there are too few methods."""
    methods = reached(sequences)
    if len(methods) < FEWEST:
        return None
    front, bend = front_of(methods)
    about = (
        "Held-out loss at the end, the mean over domains, against the change on general text; means over seeds with "
        "95% intervals; lower is better. The dark line is the front: no method that learns domain after domain is "
        "better on both. Hollow: models of their own, or all text at once."
    )
    return Figures([(_drawing(methods, front, bend), about)])


def _drawing(methods: Sequence[Reached], front: Sequence[Reached], bend: Reached | None) -> str:
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
        axes.set_xlabel("loss on the domains at the end [nats]")
        axes.set_ylabel("change on general text [nats]")
        _name(figure, axes, methods)
        return svg(figure, "domains-against-general-text")


def _name(figure: Figure, axes: Axes, methods: Sequence[Reached]) -> None:
    """Writes each name where it covers no other name and no point; else to the right."""
    figure.draw_without_rendering()
    points = [axes.transData.transform(each.point) for each in methods]
    taken: list[Bbox] = []
    for each in methods:
        tried: list[tuple[int, int, Annotation, Bbox]] = []
        for x, y, across, up in PLACES:
            text = axes.annotate(
                short(each.method), each.point, (x, y), textcoords="offset points", ha=across, va=up, fontsize=8
            )
            box = text.get_window_extent()
            hidden = sum(box.overlaps(other) for other in taken) + sum(box.contains(*point) for point in points)
            tried.append((hidden, len(tried), text, box))
        _, best, _, box = min(tried, key=lambda one: one[:2])
        taken.append(box)
        for _, place, text, _ in tried:
            if place != best:
                text.remove()
