"""Writes the report's section on sequences of domains: which method forgets less and scores higher, and loss plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from adapt.show.blocks import Block, Figures, FindingBlock, Folded, TextBlock, joined_names, worded_interval
from adapt.show.drawing import WIDTH, canvas, color, short, style, svg
from adapt.show.report import sequence_tables
from adapt.show.report.look_texts import WORDS, ending_text
from adapt.show.report.pareto_front import FEWEST, draw_front, front_of
from adapt.show.report.sequence_runs import MEASURES, Measure, Paired, Sequences, cells_of, compare_methods
from adapt.show.report.task_comparison import nats
from adapt.show.report.task_tables import Drawn
from adapt.statistics.comparison import out_of_reach, p_value, to_decide
from adapt.statistics.continual_metrics import Matrix
from adapt.statistics.seeds import spread

Compared = Mapping[str, Mapping[str, Paired]]
FORGETS = {"forgetting": ("Forgets", " points"), "loss_forgetting": ("Forgets, in held-out loss,", " nats per token")}
AVERAGE = {"average": ("Average score", ""), "loss_average": ("Average held-out loss", " nats per token")}
"""Metrics in the verdict, each with the subject and the unit of the sentence about it. FORGETS: forgetting in scores
or, for methods without scores, in losses. AVERAGE: average score and average loss."""
GENERAL = {"general_change": ("Change on general text", " nats per token")}
"""A further metric in the verdict, with the subject and the unit of the sentence about it."""
_BY_NAME = {measure.name: measure for measure in MEASURES}


def sequence_verdicts(sequences: Sequences) -> list[FindingBlock]:
    """Makes a finding per method, compared with the baseline if there is a baseline.

    If several methods have too few seeds, one further finding explains this, and the methods' findings only mention it.
    """
    compared = compare_methods(sequences)
    others = [name for name in sequences.methods if name != sequences.baseline]
    findings = [_finding(name, sequences, compared) for name in others or sequences.methods]
    limits = {
        limit: None
        for measured in compared.values()
        for paired in measured.values()
        if not paired.significant and (limit := _limit(paired)) and any(limit in each.text for each in findings)
    }
    if len(others) < 2:
        return findings
    for limit in limits:
        findings = [replace(each, text=each.text.replace(limit, "too few seeds")) for each in findings]
    return [*findings, *(FindingBlock("Seeds", f"{limit[0].upper()}{limit[1:]}.", "warning") for limit in limits)]


def _finding(method: str, sequences: Sequences, compared: Compared) -> FindingBlock:
    forgets, averages = ([name for name in each if sequences.values(method, name)] for each in (FORGETS, AVERAGE))
    general = [name for name in GENERAL if sequences.values(method, name)]
    names = [*forgets[:1], *averages, *general]
    figures = " ".join(_sentence(method, _BY_NAME[name], sequences, compared) for name in names)
    text = f"{_concluded(method, names, compared)}{figures}"
    tones: set[str] = {compared[name][method].ended for name in names if method in compared[name]}
    decided = tones - {"open", "equal"} or tones - {"open"}
    # The tone is open if one metric is better and another is worse.
    tone = decided.pop() if len(decided) == 1 else "open" if tones else "plain"
    head = f"{method} against {sequences.baseline}" if tones else method
    return FindingBlock(head, text or "Nothing has been measured.", tone)


def _concluded(method: str, names: Sequence[str], compared: Compared) -> str:
    """Returns the first sentence of a finding: in which metrics a method is better, worse, equal or undecided.

    The sentence is empty if the method is not compared.
    """
    titles: dict[str, list[str]] = {}
    for name in names:
        if method in compared[name]:
            titles.setdefault(compared[name][method].ended, []).append(_BY_NAME[name].title)
    parts = [f"{words} in {joined_names(titles[ended])}" for ended, words in WORDS.items() if ended in titles]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. " if text else ""


def _sentence(method: str, measure: Measure, sequences: Sequences, compared: Compared) -> str:
    subject, unit = (FORGETS | AVERAGE | GENERAL)[measure.name]
    text = f"{subject} {_level(method, measure, sequences, unit)}"
    if method in compared[measure.name]:
        baseline = sequences.baseline or ""
        difference = _difference(measure, compared[measure.name][method])
        text += f", {baseline} {_level(baseline, measure, sequences)}; {difference}"
    return f"{text}."


def _level(method: str, measure: Measure, sequences: Sequences, unit: str = "") -> str:
    """Formats the mean of a metric with its interval, as `+1.9 points (95% CI +0.8 to +3.1; 6 seeds)`."""
    over_seeds = spread(sequences.values(method, measure.name))
    ends = worded_interval(over_seeds.low, over_seeds.high, measure.text, "95% CI ")
    seeds = f"{over_seeds.seeds} seed{'' if over_seeds.seeds == 1 else 's'}"
    return f"{measure.text(over_seeds.mean)}{unit} ({ends}{'; ' if ends else ''}{seeds})"


def _difference(measure: Measure, paired: Paired) -> str:
    """Formats the difference from the baseline, as `difference +0.7, 95% CI +0.1 to +1.3, p = .031 (Holm .062)`."""
    comparison = paired.comparison
    if paired.ending:
        return ending_text(paired.ending, measure.change, is_paired=True)
    text = f"difference {measure.change(comparison.difference)}"
    if comparison.p is None:
        why = "seeds whose values do not vary" if comparison.is_constant else "one seed"
        return f"{text}; significance cannot be tested with {why}"
    text += worded_interval(comparison.low, comparison.high, measure.change, ", 95% CI ")
    text += f", {p_value(comparison.p)}"
    if paired.adjusted is not None and paired.adjusted != comparison.p:
        text += f" (Holm {p_value(paired.adjusted, bare=True)})"
    if paired.ended == "equal":
        return f"{text}: no difference that matters"
    if paired.ended != "open":
        return text
    limit, needed = _limit(paired), to_decide(comparison, paired.margin, paired.recipes)
    return f"{text}: undecided; {f'{limit}; ' if limit else ''}{needed}"


def _limit(paired: Paired) -> str:
    """Says how many seeds significance needs, if there are too few. Returns an empty text if there are enough seeds."""
    return out_of_reach(paired.comparison, paired.recipes, "methods")


def sequence_warnings(sequences: Sequences) -> list[FindingBlock]:
    """Warns of methods that have fewer runs than others, and repeats the warnings of the methods' runs."""
    continual = {name: runs for name, runs in sequences.methods.items() if sequences.mode(name) == "continual"}
    most = max(map(len, continual.values()), default=0)
    findings = []
    for name, runs in continual.items():
        if len(runs) < most and sequences.looks is None:  # in a sequential study, comparisons may end early
            findings.append(FindingBlock(name, f"{len(runs)} of {most} sequences have finished.", "warning"))
        if texts := [warning for run in runs for warning in run.warnings]:
            warned = sum(bool(run.warnings) for run in runs)
            findings.append(
                FindingBlock(
                    name,
                    f"{len(texts)} warnings in {warned} of {len(runs)} sequences, the first: {texts[0]}",
                    "warning",
                )
            )
    return findings


def section(sequences: Sequences) -> list[Block]:
    """Makes the blocks of the section: tables and drawings. The list is empty if the study has no sequences."""
    if not sequences.methods:
        return []
    compared = compare_methods(sequences)
    tables = (
        sequence_tables.methods(sequences, compared),
        sequence_tables.by_task(sequences),
        sequence_tables.sequence_differences(sequences, compared),
        sequence_front(sequences),
        sequence_tables.sequence_costs(sequences),
    )
    blocks: list[Block] = [table for table in tables if table]
    blocks.append(Folded("The figures of every run", [sequence_tables.every_run(sequences)]))
    first, *others = [_of_order(sequences, order) for order in sequences.orders] or [[]]
    titles = [_named(sequences, order) for order in sequences.orders]
    blocks += [TextBlock(f"In order {titles[0]}."), *first] if first else []
    blocks += [Folded(f"In order {title}", inner) for title, inner in zip(titles[1:], others, strict=True) if inner]
    return [*blocks, *(_matrices(name, sequences) for name in sequences.methods if sequences.mode(name) == "continual")]


def _named(sequences: Sequences, order: tuple[str, ...]) -> str:
    name = sequences.orders[order]
    return f"{name}: {' → '.join(order)}" if name else " → ".join(order)


def _of_order(sequences: Sequences, order: tuple[str, ...]) -> list[Block]:
    blocks: list[Block] = []
    domains = sorted({domain for names in sequences.orders for domain in names})
    if drawings := losses(sequences, order, domains):
        about = (
            "Held-out loss after training on each domain, mean over seeds. A dot marks the training on the text's own"
            " domain; before it, the line is dashed."
        )
        blocks += [TextBlock(about), Figures(drawings, legend(sequences, domains))]
    tables = [
        table for name in sequences.methods for table in sequence_tables.method_tables(name, sequences.of(name, order))
    ]
    return [*blocks, Folded("Tables that the methods report", tables)] if tables else blocks


def _matrices(method: str, sequences: Sequences) -> Folded:
    tables = [
        table
        for order in sequences.orders
        if (runs := sequences.of(method, order))
        for table in sequence_tables.matrices(runs, _named(sequences, order))
    ]
    return Folded(f"{method}: scores and losses after each domain", tables)


COLORS = 7
"""Number of colours for domains, without colour 0, which is for general text, and for the baseline in other plots."""
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
    """After training on the last domain: mean loss over all domains, and change of the loss on general text since
    before the first domain [nats per token]."""
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


def front_verdict(sequences: Sequences) -> list[FindingBlock]:
    """Makes findings that name the Pareto-optimal methods. The list is empty if there are too few methods."""
    rivals = [each for each in reached(sequences) if each.is_one_model]
    number = len(rivals)
    if number < FEWEST:
        return []
    front, bend = front_of(rivals)
    if len(front) == 1:
        text = f"Of {number} methods, {front[0].method} has the lowest mean loss on the domains and on general text."
        return [FindingBlock("Domains against general text", text)]
    names = "; ".join(each.method for each in front)
    text = f"{len(front)} of {number} methods are Pareto-optimal (no other method is better on both losses): {names}"
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
    """Draws a point per method, at its two losses (`MethodReached`). Returns None if there are too few methods."""
    methods = reached(sequences)
    if len(methods) < FEWEST:
        return None
    front, _ = front_of([each for each in methods if each.is_one_model])
    shown = [each for each in methods if each in front or not _is_far(each, methods)]
    about = (
        "Mean held-out loss over the domains at the end, against the change of the loss on general text; means over "
        "seeds with 95% intervals; lower is better. The dark line is the front: no method that learns domain after "
        "domain is better on both. Hollow points: a separate model for each domain, or all domains at once."
    )
    if left := [f"{each.method} ({each.point[0]:.2f}, {nats(each.point[1])})" for each in methods if each not in shown]:
        about += f" Too far away to be drawn (loss on the domains, change on general text): {'; '.join(left)}."
    return Figures([(_drawing(shown), about)])


def _is_far(one: MethodReached, methods: Sequence[MethodReached]) -> bool:
    for axis in (0, 1):
        low, high = np.quantile([each.point[axis] for each in methods], [0.25, 0.75])
        if not low - FAR * (high - low) <= one.point[axis] <= high + FAR * (high - low):
            return True
    return False


def _drawing(methods: Sequence[MethodReached]) -> str:
    with style():
        figure, axes = canvas(1.5 * WIDTH, 1.1 * WIDTH)
        for place, each in enumerate(methods):
            (x, y), (across, up), shade = each.point, each.intervals, color(place)
            axes.plot(across, (y, y), color=shade, linewidth=1, alpha=0.6)
            axes.plot((x, x), up, color=shade, linewidth=1, alpha=0.6)
            fill = shade if each.is_one_model else "none"
            axes.plot(x, y, "o", color=shade, markerfacecolor=fill, markersize=6)
        draw_front(axes, [each for each in methods if each.is_one_model])
        axes.set_xlabel("mean loss on the domains at the end [nats per token]")
        axes.set_ylabel("change of the loss on general text [nats per token]")
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
