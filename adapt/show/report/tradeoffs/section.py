"""What models gained and forgot: a sentence, a drawing of one loss against the other, and tables."""

from collections.abc import Sequence

from adapt.show.blocks import NONE, Block, Cell, Figures, FindingBlock, Folded, Table
from adapt.show.curves import WIDTH
from adapt.show.drawing import INK, SERIES, canvas, color, style, svg
from adapt.show.report.tasks.cost import hours
from adapt.show.report.tasks.verdict import nats
from adapt.show.report.tradeoffs.front import knee, pareto_front
from adapt.show.report.tradeoffs.law import law_findings
from adapt.show.report.tradeoffs.points import BASE, LossOn, MeasuredAlike, TradeOff

MARK = "\N{BLACK STAR}"
"""Stands beside the knee."""


def _on_front(measured: MeasuredAlike) -> tuple[list[TradeOff], TradeOff | None]:
    """The models on the front, by domain loss, and the knee."""
    front = [measured.models[place] for place in pareto_front([model.point for model in measured.models])]
    place = knee([model.point for model in front])
    return front, None if place is None else front[place]


def tradeoff_verdicts(found: Sequence[MeasuredAlike]) -> list[FindingBlock]:
    """For each pair of texts: how many models are worth a look, and the knee with its cost; and what the law says."""
    return [finding for measured in found for finding in (_finding(measured), *law_findings(measured))]


def _finding(measured: MeasuredAlike) -> FindingBlock:
    front, bend = _on_front(measured)
    text = f"Of {len(measured.models)} models, {len(front)} are beaten on both texts by none"
    if bend is None:
        names = "; ".join(model.label for model in front)
        return FindingBlock("Gain against forgetting", f"{text} ({names}), and their front has no knee.", "open")
    losses = " and ".join(
        f"loss on {name} {loss.value:.2f}{_change(loss)}"
        for name, loss in (("the domain", bend.domain), ("general text", bend.general))
    )
    if bend.label == BASE:
        return FindingBlock("Gain against forgetting", f"{text}; the knee is the base itself: {losses}.", "open")
    price = "" if bend.hours is None else f", for {hours(bend.hours, 'device-')}"
    return FindingBlock("Gain against forgetting", f"{text}; the knee is {bend.label}: {losses}{price}.")


def _change(loss: LossOn) -> str:
    """` (-0.42, -0.45 to -0.39)`: the change against the base, with its interval."""
    if loss.change is None:
        return ""
    return f" ({nats(loss.change)}{_interval(loss, ', ')})"


def _interval(loss: LossOn, before: str = "") -> str:
    return "" if loss.low is None or loss.high is None else f"{before}{nats(loss.low)} to {nats(loss.high)}"


def tradeoff_section(found: Sequence[MeasuredAlike]) -> list[Block]:
    """The section's blocks; none where nothing was measured so."""
    blocks: list[Block] = []
    for number, measured in enumerate(found):
        front, bend = _on_front(measured)
        note = (
            "Held-out loss, nats a predicted token, lower is better; below it the change against the base with its 95%"
            f" interval over documents, for this one training. {MARK} the knee: the farthest below the line between the"
            " ends."
        )
        about = (
            "Each point is a model; lines join those that lie between the base and one training. The dark line is the"
            " front: nothing else is better on both texts. Device time is that of the training; merging costs nothing."
        )
        everything = sorted(measured.models, key=lambda model: model.point)
        blocks += [
            Figures([(_drawing(measured, front, bend, number), about)], _legend(measured)),
            _table(front, bend, "The front", note),
            Folded(f"All {len(everything)} models", [_table(everything, bend, "", "")]),
        ]
    return blocks


def _table(models: Sequence[TradeOff], bend: TradeOff | None, title: str, note: str) -> Table:
    rows: list[list[Cell | str]] = [
        [
            Cell(model.label, mark=MARK if model is bend else "", strong=model is bend),
            *(Cell(f"{loss.value:.3f}", _small(loss)) for loss in (model.domain, model.general)),
            hours(model.hours) if model.hours is not None else NONE,
        ]
        for model in models
    ]
    return Table(["model", "loss on its domain", "loss on general text", "device time"], rows, title, note)


def _small(loss: LossOn) -> str:
    return "" if loss.change is None else f"{nats(loss.change)} {_interval(loss)}".strip()


def _first_set(measured: MeasuredAlike) -> tuple[str, list[str]]:
    """The set that colours tell, and its members."""
    values = [model.values for model in measured.models if model.values]
    name = next(iter(values[0])) if values else ""
    return name, list(dict.fromkeys(each[name] for each in values if name in each))


def _legend(measured: MeasuredAlike) -> list[tuple[str, int]]:
    name, members = _first_set(measured)
    return [(f"{name} {member}", 1 + place % (SERIES - 1)) for place, member in enumerate(members)]


def _drawing(measured: MeasuredAlike, front: Sequence[TradeOff], bend: TradeOff | None, number: int) -> str:
    name, members = _first_set(measured)
    with style():
        figure, axes = canvas(1.3 * WIDTH, 3.8)
        for line in _lines(measured.models):
            axes.plot(*zip(*(model.point for model in line), strict=True), color=INK, alpha=0.2, linewidth=1)
        for model in measured.models:
            member = model.values.get(name)
            shade = color(1 + members.index(member) % (SERIES - 1)) if member in members else color(0)
            axes.plot(*model.point, "o", color=shade, markersize=6)
        axes.plot(*zip(*(model.point for model in front), strict=True), color=INK, linewidth=1.6, zorder=1)
        if bend:
            axes.plot(*bend.point, "o", color=INK, markersize=14, fillstyle="none")
        axes.set_xlabel("loss on the domain [nats]")
        axes.set_ylabel("loss on general text [nats]")
        return svg(figure, f"gain-against-forgetting-{number}")


def _lines(models: Sequence[TradeOff]) -> list[list[TradeOff]]:
    """For each training, the base, what lies between, and what it came to: those with its values and one more."""
    bases = [model for model in models if model.label == BASE]
    lines = []
    for end in models:
        between = [
            model
            for model in models
            if len(model.values) == len(end.values) + 1 and end.values.items() <= model.values.items() and end.values
        ]
        if between:
            lines.append(sorted([*bases, *between, end], key=lambda model: -model.domain.value))
    return lines
