"""Compares gain on a domain with forgetting of general text: measured models, Pareto front, and laws of the loss.

The laws predict the losses of other mixtures, and how often the text can be read before repeats stop helping.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from adapt.runner.record import Record
from adapt.runner.stage import canonical
from adapt.show.blocks import NONE, Block, Cell, Figures, FindingBlock, Folded, Table, worded_interval
from adapt.show.drawing import INK, SERIES, WIDTH, canvas, color, style, svg
from adapt.show.report.pareto_front import draw_front, front_of
from adapt.show.report.study import Entry, Study, upstream
from adapt.show.report.task_comparison import hours, nats
from adapt.statistics.loss_laws import LARGEST, MixtureLaw, fit_law, fit_repeats, share_that_keeps, stop_of
from adapt.statistics.seeds import MARGIN

VARIED = (
    *(("training", name) for name in ("max_steps", "max_tokens", "max_flops", "epochs")),
    ("mixture", "replay_fraction"),
)
"""Fields that may differ between training runs to which the same mixture law is fitted."""
START = "start.training"
"""Name of one input of a training stage: the earlier training stage or merge that produced the start model."""
GENERAL = "general"
"""Name of general text in comparisons."""
BASE = "base"
"""Label of the model that all training runs started from."""


@dataclass(frozen=True)
class LossOn:
    """Held-out loss on a text [nats per token]."""

    value: float
    change: float | None = None
    """Change of the loss relative to the base model, paired by document. `low` and `high` are its 95% interval."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Mixed:
    """Length and data mixture of a training run."""

    tokens: int
    replay: float
    """Share of the training sequences that are replayed text."""
    settings: str
    """All other settings of the training run, as text."""
    passes: float | None = None
    """Number of times that the domain's text is read; None if the size of this text is not known."""


@dataclass(frozen=True)
class TradeOff:
    """A model with its losses on the domain and on general text."""

    label: str
    values: Mapping[str, str]
    """Swept values of the model. The base model has no swept values."""
    domain: LossOn
    general: LossOn
    hours: float | None
    """Device-hours of all training runs that led to the model, or None if a record is gone."""
    mixed: "Mixed | None" = None
    """Length and mixture of the training run that made the model. None if the model was not trained from the base
    model."""

    @property
    def point(self) -> tuple[float, float]:
        """Loss on the domain and loss on general text."""
        return self.domain.value, self.general.value


@dataclass
class ComparableModels:
    """Models that were measured on the same two texts. The base model comes first."""

    models: list[TradeOff] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)
    """Keys of the stages that compared the models."""

    @property
    def name(self) -> str:
        """Swept values that all adapted models have, such as `task imdb`. Empty if they have none."""
        swept = [model.values.items() for model in self.models if model.label != BASE]
        shared = [item for item in swept[0] if all(item in of_model for of_model in swept)] if swept else []
        return _label(dict(shared), "")


Texts = tuple[str, str]
"""Keys of two prepared texts: the domain's text and general text."""


def tradeoffs(study: Study, fewest: int) -> list[ComparableModels]:
    """Groups models by the two texts that they were measured on.

    Groups with fewer than `fewest` models are left out.
    """
    found: dict[Texts, ComparableModels] = {}
    for entry in study.entries:
        read = {"export": _exported, "compare": _compared}.get(entry.record.stage)
        for texts, model in read(entry) if read else ():
            measured = found.setdefault(texts, ComparableModels())
            if model.point not in [known.point for known in measured.models]:
                measured.models.append(model)
            measured.compared |= {entry.record.key} if entry.record.stage == "compare" else set()
    enough = [measured for measured in found.values() if len(measured.models) >= fewest]
    for measured in enough:
        measured.models.sort(key=lambda model: model.label != BASE)
    return sorted(enough, key=lambda measured: -len(measured.models))


def _label(values: Mapping[str, str], name: str) -> str:
    return ", ".join(f"{of_set} {member}" for of_set, member in values.items()) or name


def _exported(entry: Entry) -> Iterator[tuple[Texts, TradeOff]]:
    """Yields the exported model. Also yields the initial model, unless an earlier training run produced it.

    Yields nothing if the export did not measure both the domain and general text.
    """
    inputs, losses = entry.record.inputs, entry.result.losses
    if not {"domain", GENERAL} <= inputs.keys() or not {"domain", GENERAL} <= losses.keys():
        return
    texts, training = (inputs["domain"]["key"], inputs[GENERAL]["key"]), upstream(entry.record, "training")
    is_first = training is None or START not in training.inputs  # otherwise an earlier run trained the initial model
    both = losses["domain"], losses[GENERAL]
    if is_first:
        old, old_general = (LossOn(of.before.value) for of in both)
        yield texts, TradeOff(BASE, {}, old, old_general, 0.0)
    new, general = (
        LossOn(of.after.value, of.change.value, of.change.low, of.change.high) if is_first else LossOn(of.after.value)
        for of in both
    )
    mixed = _mixed(entry, training) if training and is_first else None
    yield texts, TradeOff(_label(entry.values, entry.name), entry.values, new, general, _hours(training), mixed)


def _mixed(export: Entry, training: Record) -> Mixed | None:
    """Returns length and mixture of a training run, or None for streamed text, because its sources are unknown."""
    sources, what = export.result.sources, training.what
    if not sources or "training" not in what or "mixture" not in what:
        return None
    settings = {name: {**value} if isinstance(value, Mapping) else value for name, value in what.items()}
    for section, name in VARIED:
        settings[section].pop(name, None)
    replay = sources[REPLAY].share if REPLAY in sources else 0.0
    passes = passes_over(training, {name: share.tokens for name, share in sources.items()})
    return Mixed(export.result.tokens, replay, canonical(settings), passes)


def _compared(entry: Entry) -> Iterator[tuple[Texts, TradeOff]]:
    """Yields the models of a comparison that measured one domain and general text."""
    compared = entry.result
    names, domains = compared.models, compared.domains
    if (
        len(domains) != 2 or domains[1] != GENERAL or compared.unit == "bits per byte"
    ):  # losses in bits per byte cannot be compared with losses per token
        return
    looks = {name: look for name in names if (look := upstream(entry.record, f"models.{name}.losses"))}
    has_base = names[0] in looks and START not in looks[names[0]].inputs
    for name, look in looks.items():
        place = names.index(name)
        domain, general = (
            LossOn(
                compared.loss[place][column],
                compared.change[place][column],
                compared.change_low[place][column],
                compared.change_high[place][column],
            )
            if has_base and place
            else LossOn(compared.loss[place][column])
            for column in (0, 1)
        )
        texts = look.inputs[f"corpora.{domains[0]}"]["key"], look.inputs[f"corpora.{GENERAL}"]["key"]
        if place == 0 and has_base:
            yield texts, TradeOff(BASE, {}, domain, general, 0.0)
        elif place:
            values = entry.values if len(names) == 2 else {**entry.values, "model": name}
            yield texts, TradeOff(_label(values, name), values, domain, general, _hours(upstream(look, START)))


def _hours(maker: Record | None) -> float | None:
    """Sums the device-hours of all training runs that led to a model, each counted once. Merges cost nothing."""
    costs: dict[str, float | None] = {}
    waiting: list[Record | None] = [maker]
    for record in waiting:
        if record is None:
            return None
        if record.stage == "train":
            costs[record.key] = record.cost.get("device_hours")
        waiting += [upstream(record, name) for name in _makers(record)]
    known = [hours for hours in costs.values() if hours is not None]
    return sum(known) if len(known) == len(costs) else None


def _makers(record: Record) -> list[str]:
    """Lists the names of a stage's inputs that produced its start model, the models that it merges, or its teachers."""
    is_merge = record.stage == "merge"
    return [
        name
        for name in record.inputs
        if name == START or (is_merge and name.startswith("models.")) or name.startswith("teachers.")
    ]


def law_findings(measured: ComparableModels, margin: float = MARGIN.nats) -> list[FindingBlock]:
    """Fits the laws of mixtures and of repeats to runs that differ only in length and share of general text.

    Args:
        measured: models that were measured on the same texts.
        margin: largest difference of losses that does not matter [nats].
    """
    groups: dict[str, list[tuple[Mixed, TradeOff]]] = {}
    for model in measured.models:
        if model.mixed:
            groups.setdefault(model.mixed.settings, []).append((model.mixed, model))
    before = next((model for model in measured.models if model.label == BASE), None)
    findings = [
        finding
        for group in groups.values()
        if before
        for finding in (_law_finding(group, before), repeats_finding(group, margin))
    ]
    return [finding for finding in findings if finding]


def _law_finding(group: list[tuple[Mixed, TradeOff]], before: TradeOff) -> FindingBlock | None:
    tokens = [mixed.tokens for mixed, _ in group]
    replay = [mixed.replay for mixed, _ in group]
    domain = fit_law(tokens, [1 - share for share in replay], [model.domain.value for _, model in group])
    general = fit_law(tokens, replay, [model.general.value for _, model in group])
    if domain is None or general is None:
        return None
    longest, (_, first) = max(tokens), group[0]
    share = share_that_keeps(general, longest, before.general.value)
    fit = (
        f"Fitted to all other trainings, the law predicts a training's loss within {_error(domain)} on the domain and"
        f" {_error(general)} on general text"
    )
    head = f"Replay share by the D-CPT law, {len(group)} trainings like {first.label}"
    if share is None:
        kept = f"the loss on general text at {before.general.value:.2f} over {longest:,} tokens"
        return FindingBlock(head, f"No share of replayed text up to {LARGEST:.0%} keeps {kept}. {fit}.", "open")
    text = (
        f"{share:.0%} of replayed text keeps the loss on general text at {before.general.value:.2f} over {longest:,}"
        f" tokens, with a loss of {domain.loss(longest, 1 - share):.2f} on the domain"
    )
    return FindingBlock(head, f"{text}. {fit}.")


def _error(law: MixtureLaw) -> str:
    return f"{law.error:.3f} nats per token ({max(law.explained, 0.0):.0%} of the variance explained)"


MARK = "\N{BLACK STAR}"
"""Mark of the model at the knee."""


def tradeoff_verdicts(found: Sequence[ComparableModels], margin: float = MARGIN.nats) -> list[FindingBlock]:
    """Makes findings for each pair of texts: the Pareto-optimal models, the knee and its cost, and the laws' fits.

    Args:
        found: models, grouped by the texts that they were measured on.
        margin: largest difference of losses that does not matter [nats].
    """
    return [finding for measured in found for finding in (_finding(measured), *law_findings(measured, margin))]


def _finding(measured: ComparableModels) -> FindingBlock:
    front, bend = front_of(measured.models)
    head = _titled("Gain against forgetting", measured)
    are = "is" if len(front) == 1 else "are"
    number = f"{len(front)} of {len(measured.models)} models"
    text = f"{number} {are} Pareto-optimal (no other model is better on both texts)"
    if bend is None:
        names = "; ".join(model.label for model in front)
        return FindingBlock(head, f"{text}: {names}. There is no single best compromise.", "open")
    losses = " and ".join(
        f"loss on {name} {loss.value:.2f}{_change(loss)}"
        for name, loss in (("the domain", bend.domain), ("general text", bend.general))
    )
    if bend.label == BASE:
        return FindingBlock(head, f"{text}. The best compromise (the knee) is the base itself: {losses}.", "open")
    price = "" if bend.hours is None else f", for {hours(bend.hours, 'device-')}"
    return FindingBlock(head, f"{text}. The best compromise (the knee) is {bend.label}: {losses}{price}.")


def _titled(title: str, measured: ComparableModels) -> str:
    return f"{title}, {measured.name}" if measured.name else title


def _change(loss: LossOn) -> str:
    """Formats the change of a loss from the base with its interval, as ` (-0.42, -0.45 to -0.39)`."""
    if loss.change is None:
        return ""
    return f" ({nats(loss.change)}{_interval(loss, ', ')})"


def _interval(loss: LossOn, before: str = "") -> str:
    return worded_interval(loss.low, loss.high, nats, before)


def tradeoff_section(found: Sequence[ComparableModels]) -> list[Block]:
    """Makes the blocks of the section. The list is empty if no models were measured on both texts."""
    blocks: list[Block] = []
    for number, measured in enumerate(found):
        front, bend = front_of(measured.models)
        note = (
            "Held-out loss in nats per token; lower is better. Below it is the change from the base with its 95%"
            " interval over documents, which does not include variation between training runs."
            f" {MARK} marks the knee, the best compromise: the model farthest below the line between the ends of the"
            " front."
        )
        about = (
            "Each point is a model. Lines join the models between the base and one training. The dark line is the"
            " front: no other model is better on both texts. Device time is that of the training; merging costs none."
        )
        everything = sorted(measured.models, key=lambda model: model.point)
        blocks += [
            Figures([(_drawing(measured, number), about)], _legend(measured)),
            _table(front, bend, _titled("The front", measured), note),
            Folded(_titled(f"All {len(everything)} models", measured), [_table(everything, bend, "", "")]),
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


def _first_set(measured: ComparableModels) -> tuple[str, list[str]]:
    """Returns the name of the first swept set, which determines the colours, and the members of this set."""
    values = [model.values for model in measured.models if model.values]
    name = next(iter(values[0])) if values else ""
    return name, list(dict.fromkeys(each[name] for each in values if name in each))


def _legend(measured: ComparableModels) -> list[tuple[str, int]]:
    name, members = _first_set(measured)
    return [(f"{name} {member}", 1 + place % (SERIES - 1)) for place, member in enumerate(members)]


def _drawing(measured: ComparableModels, number: int) -> str:
    name, members = _first_set(measured)
    with style():
        figure, axes = canvas(1.3 * WIDTH, 3.8)
        for line in _lines(measured.models):
            axes.plot(*zip(*(model.point for model in line), strict=True), color=INK, alpha=0.2, linewidth=1)
        for model in measured.models:
            member = model.values.get(name)
            shade = color(1 + members.index(member) % (SERIES - 1)) if member in members else color(0)
            axes.plot(*model.point, "o", color=shade, markersize=6)
        draw_front(axes, measured.models)
        axes.set_xlabel("loss on the domain [nats per token]")
        axes.set_ylabel("loss on general text [nats per token]")
        return svg(figure, f"gain-against-forgetting-{number}")


def _lines(models: Sequence[TradeOff]) -> list[list[TradeOff]]:
    """Returns one line per training run: from the base through interpolated models to the trained model."""
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


REPLAY = "(replay)"
"""Name of replayed general text among the sources of a training run."""


def passes_over(training: Record, tokens: Mapping[str, int]) -> float | None:
    """Returns how often a training run read the domain's text; None if the size of a text is not known.

    Args:
        training: record of the training run.
        tokens: number of tokens that the training read of each source.
    """
    texts = {name: upstream(training, f"corpora.{name}") for name in tokens if name != REPLAY}
    sizes = [int(text.metrics.get("train_tokens") or 0) if text else 0 for text in texts.values()]
    return sum(tokens[name] for name in texts) / sum(sizes) if sizes and all(sizes) else None


def repeats_finding(group: Sequence[tuple[Mixed, TradeOff]], margin: float) -> FindingBlock | None:
    """Fits the law of repeats to training runs that differ only in length and share of general text.

    Args:
        group: the training runs, each with the model that it made.
        margin: largest difference of losses that does not matter [nats].

    Returns:
        The finding; None if too few training runs or numbers of passes are known for a fit.
    """
    trainings = [(mixed.passes, mixed.replay, model.domain.value) for mixed, model in group if mixed.passes]
    passes, shares, losses = ([training[place] for training in trainings] for place in range(3))
    law = fit_repeats(passes, shares, losses)
    if law is None:
        return None
    stop = stop_of(law, passes, shares, losses, margin)
    best_passes, best_share, lowest = min(trainings, key=lambda training: training[2])
    most = f"{law.most:.3g} passes, the most that were tried"
    head = f"Repeats of the text, {len(trainings)} trainings like {group[0][1].label}"
    fit = (
        f" Lowest loss measured: {lowest:.3f} after {best_passes:.3g} passes with {best_share:.0%} of general"
        f" text. The law (arXiv 2305.16264, with a penalty for repeats) fits within {law.error:.3f} nats; a repeated"
        f" token loses two thirds of its value after {law.worth:.3g} repeats."
    )
    high = "not reached" if stop.high is None else f"{stop.high:.3g}"
    ends = f"95% interval {stop.low:.3g} to {high}"
    if stop.passes is None:
        interval = f"95% interval of the limit: {stop.low:.3g} to {high}"
        text = f"After {most}, repeats still lower the loss by more than {margin:g} nats ({interval})."
        return FindingBlock(head, text + fit, "open")
    return FindingBlock(
        head, f"Beyond {stop.passes:.3g} passes, repeats lower the loss by less than {margin:g} nats ({ends}).{fit}"
    )
