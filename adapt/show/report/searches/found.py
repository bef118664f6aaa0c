"""A search as its record tells it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapt.runner.record import Record
from adapt.show.report.entry import Study


@dataclass(frozen=True)
class FoundTrial:
    """A trial that was measured after the longest turn."""

    number: int
    values: Mapping[str, Any]
    """All searched fields, those that it leaves as they are too."""
    figures: Mapping[str, Mapping[str, float | None]]
    """`value`, `low` and `high` by objective, and of all else that was measured."""
    key: str
    """The key of its stage `trial`."""
    rank: int
    """Its place by the first objective; 0 is the best."""

    def value(self, objective: str) -> float:
        """What was measured."""
        value = self.figures[objective]["value"]
        assert value is not None
        return value


@dataclass(frozen=True)
class FoundSearch:
    """A search that has finished."""

    label: str
    """What it is called in the chain."""
    record: Record
    fields: list[str]
    trials: list[FoundTrial]
    """The best first."""
    confirmed: Mapping[str, Any] | None
    """What fresh seeds said; None where they were not asked."""

    @property
    def objectives(self) -> dict[str, str]:
        """`min` or `max`, by the name of the figure; the first decides."""
        return dict(self.record.metrics["objectives"])

    @property
    def first(self) -> str:
        """The objective that decides."""
        return next(iter(self.objectives))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All trials, also those that failed or were stopped."""
        return list(self.record.metrics["trials"])

    @property
    def best(self) -> FoundTrial:
        """The best trial on dev."""
        return next(trial for trial in self.trials if trial.number == self.record.metrics["best"])

    @property
    def as_it_is(self) -> FoundTrial | None:
        """The configuration as it is; None if it failed."""
        return next((trial for trial in self.trials if trial.number == 0), None)

    @property
    def front(self) -> list[FoundTrial]:
        """The trials that no other is better than in all objectives."""
        return [trial for trial in self.trials if trial.number in self.record.metrics["front"]]


def searches_of(study: Study) -> list[FoundSearch]:
    """The finished searches of a study, each once."""
    records = {entry.record.key: entry for entry in study.entries if entry.record.stage == "search"}
    confirmed = {
        entry.record.inputs["search"]["key"]: entry.record.metrics
        for entry in study.entries
        if entry.record.stage == "confirm"
    }
    return [
        _found(" · ".join([entry.name, *entry.values.values()]), entry.record, confirmed.get(key))
        for key, entry in records.items()
    ]


def _found(label: str, record: Record, confirmed: Mapping[str, Any] | None) -> FoundSearch:
    metrics = record.metrics
    (first, way), *_ = metrics["objectives"].items()
    known = [row for row in metrics["trials"] if row["figures"]]
    longest = max((row["steps"] or 0 for row in known), default=0)
    whole = [row for row in known if (row["steps"] or 0) == longest]
    whole.sort(key=lambda row: (row["figures"][first]["value"] * (1 if way == "min" else -1), row["number"]))
    as_it_is = metrics.get("as_it_is") or {}
    trials = [
        FoundTrial(row["number"], {**as_it_is, **row["values"]}, row["figures"], row["key"], rank)
        for rank, row in enumerate(whole)
    ]
    fields = list(dict.fromkeys(name for row in metrics["trials"] for name in row["values"]))
    return FoundSearch(label, record, fields, trials, confirmed)
