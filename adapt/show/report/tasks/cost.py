"""What a recipe cost, and what it did to general ability."""

from collections.abc import Iterable
from dataclasses import dataclass

from adapt.runner.record import Record
from adapt.show.report.entry import Entry, Study
from adapt.show.report.tasks.collect import Results, RunGroup


@dataclass(frozen=True)
class Cost:
    """What pre-training cost. Each figure is None if the record of one training is not in the study."""

    device_hours: float | None
    money: float | None


class Trainings:
    """The exports of a study, by the key of the training that made the model."""

    def __init__(self, study: Study) -> None:
        exports = (entry for entry in study.entries if entry.record.stage == "export")
        self.exports: dict[str, Entry] = {entry.record.inputs["training"]["key"]: entry for entry in exports}
        self.merges = {entry.record.key for entry in study.entries if entry.record.stage == "merge"}

    def cost(self, keys: Iterable[str]) -> Cost:
        """The cost of some trainings together, each counted once. Merges cost nothing."""
        exports = [self.exports.get(key) for key in dict.fromkeys(keys) if key not in self.merges]
        records = [export.record if export else None for export in exports]
        return Cost(_sum(records, "device_hours"), _sum(records, "cost"))

    def of_recipe(self, results: Results, recipe: str) -> Cost:
        """The cost of all trainings that a recipe needed for all tasks."""
        return self.cost(key for row in results.rows if recipe in row.groups for key in row.groups[recipe].trained)

    def general_change(self, group: RunGroup) -> float | None:
        """Held-out loss on general text after the last training minus that before the first [nats a token]."""
        exports = [self.exports.get(key) for key in group.trained]
        if not exports or exports[0] is None or exports[-1] is None:
            return None
        first, last = (export.result.losses.get("general") for export in (exports[0], exports[-1]))
        return None if first is None or last is None else float(last.after.value - first.before.value)

    def general_changes(self, results: Results, recipe: str) -> list[float]:
        """The changes of loss on general text by the models of a recipe, one for each model for which it is known."""
        groups = [row.groups[recipe] for row in results.rows if recipe in row.groups]
        changes = {group.trained: self.general_change(group) for group in groups}
        return [change for change in changes.values() if change is not None]


def finetuning_hours(group: RunGroup) -> float | None:
    """Device-hours of fine-tuning, all seeds together."""
    seconds = [entry.record.cost.get("device_seconds") for entry in group.entries]
    known = [spent for spent in seconds if spent is not None]
    return sum(known) / 3600 if len(known) == len(seconds) else None


def hours(value: float | None, of: str = "") -> str:
    """Time for people: `0.8 hours`, below a tenth of one `4 minutes`; `of` comes before the unit, as `device-`."""
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    return f"{value:,.{0 if value >= 10 else 1}f} {of}hours" if value >= 0.1 else f"{value * 60:.2g} {of}minutes"


def _sum(records: list[Record | None], name: str) -> float | None:
    values = [record.cost.get(name) if record else None for record in records]
    known = [float(value) for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
