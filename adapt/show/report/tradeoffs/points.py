"""Collects the models of a study that were measured on one domain and on general text, by the texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adapt.errors import StageError
from adapt.runner.key import canonical
from adapt.runner.record import Record, load_record
from adapt.show.report.entry import Entry, Study

VARIED = (
    *(("training", name) for name in ("max_steps", "max_tokens", "max_flops", "epochs")),
    ("mixture", "replay_fraction"),
)
"""What trainings that one law describes may differ in."""
REPLAY = "(replay)"
"""What trainings call replayed text."""
START = "start.training"
"""The input that is the training, or the merge, that a model is from."""
GENERAL = "general"
"""What comparisons call general text."""
BASE = "base"
"""What the model is called that the trainings began with."""


@dataclass(frozen=True)
class LossOn:
    """The held-out loss on a text [nats a predicted token]."""

    value: float
    change: float | None = None
    """Against the model that the trainings began with, paired by document, with its 95% interval."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Mixed:
    """How long a model was trained, and on how much replayed text."""

    tokens: int
    replay: float
    """Share of the rows."""
    settings: str
    """All other settings of the training, as text."""


@dataclass(frozen=True)
class TradeOff:
    """A model, and its loss on both texts."""

    label: str
    values: Mapping[str, str]
    """The members of sets that it stands for; empty for the base."""
    domain: LossOn
    general: LossOn
    hours: float | None
    """Device-hours of the trainings that made it; None if a record is gone."""
    mixed: "Mixed | None" = None
    """The mixture that it was trained on; None if it is no training's own model, or did not begin with the base."""

    @property
    def point(self) -> tuple[float, float]:
        """Both losses."""
        return self.domain.value, self.general.value


@dataclass
class MeasuredAlike:
    """The models that were measured on the same two texts; the base first."""

    models: list[TradeOff] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)
    """The keys of the comparisons that they were taken from."""


Texts = tuple[str, str]
"""The keys of the prepared texts."""


def tradeoffs(study: Study, fewest: int) -> list[MeasuredAlike]:
    """The models by the texts they were measured on, where there are at least so many, those of most models first."""
    found: dict[Texts, MeasuredAlike] = {}
    for entry in study.entries:
        read = {"export": _exported, "compare": _compared}.get(entry.record.stage)
        for texts, model in read(entry) if read else ():
            measured = found.setdefault(texts, MeasuredAlike())
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
    """The model before the training, and after it."""
    inputs, losses = entry.record.inputs, entry.result.losses
    if not {"domain", GENERAL} <= inputs.keys() or not {"domain", GENERAL} <= losses.keys():
        return
    texts, training = (inputs["domain"]["key"], inputs[GENERAL]["key"]), _load(inputs["training"])
    is_first = training is None or START not in training.inputs  # else it was compared with another training's model
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
    """Known where the sources are: not of a streamed corpus."""
    sources, what = export.result.sources, training.what
    if not sources or "training" not in what or "mixture" not in what:
        return None
    settings = {name: {**value} if isinstance(value, Mapping) else value for name, value in what.items()}
    for section, name in VARIED:
        settings[section].pop(name, None)
    replay = sources[REPLAY].share if REPLAY in sources else 0.0
    return Mixed(export.result.tokens, replay, canonical(settings))


def _compared(entry: Entry) -> Iterator[tuple[Texts, TradeOff]]:
    """Each model of a comparison on one domain and general text."""
    compared, inputs = entry.result, entry.record.inputs
    names, domains = compared.models, compared.domains
    if len(domains) != 2 or domains[1] != GENERAL or compared.unit == "byte":  # others are losses of tokens
        return
    looks = {name: look for name in names if (look := _load(inputs.get(f"models.{name}.losses")))}
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
            yield texts, TradeOff(_label(values, name), values, domain, general, _hours(_load(look.inputs.get(START))))


def _hours(maker: Record | None) -> float | None:
    """Device-hours of all trainings behind a model, each counted once; a merge costs nothing."""
    costs: dict[str, float | None] = {}
    waiting: list[Record | None] = [maker]
    for record in waiting:
        if record is None:
            return None
        if record.stage == "train":
            costs[record.key] = record.cost.get("device_hours")
        waiting += [_load(made) for made in _makers(record)]
    known = [hours for hours in costs.values() if hours is not None]
    return sum(known) if len(known) == len(costs) else None


def _makers(record: Record) -> Sequence[Mapping[str, str]]:
    return [
        made
        for name, made in record.inputs.items()
        if name == START or (record.stage == "merge" and name.startswith("models."))
    ]


def _load(made: Mapping[str, str] | None) -> Record | None:
    try:
        return load_record(Path(made["path"])) if made else None
    except StageError:
        return None
