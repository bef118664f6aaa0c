"""The chain of a report: its finished stages, each with its entry in the chain file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.runner import Finished
from adapt.runner.record import Record, load_record
from adapt.statistics.seeds import MARGIN, Looked, Margin
from adapt.support.errors import StageError

HTML = "report.html"
"""File name of the report's page."""


@dataclass(frozen=True)
class Entry:
    """A finished stage of a chain, with its entry in the chain file."""

    name: str
    """Name of the entry in the chain file, such as `dapt`, `tapt` or `finetune`."""
    job: str
    """Name of the entry's job, such as `dapt`, `tapt`, `finetune` or `evaluate`."""
    values: Mapping[str, str]
    """The swept values, such as `{"recipe": "DAPT", "task": "acl_arc", "seed": "3"}`, or nothing without swept
    values."""
    finished: Finished[Any]
    """The stage with its record and result. For job `finetune`, it is the run of one seed. For jobs `dapt` and `tapt`,
    it is the stage `export`."""
    trained: tuple[str, ...] = ()
    """For job `finetune`, keys of the `train` and `merge` stages that made the model, in order. It is empty if the
    chain did not make the model."""
    task: str = ""
    """For job `finetune`, the current name of the task. Records have no name, because the name does not affect
    results."""

    @property
    def record(self) -> Record:
        """The record of the finished stage."""
        return self.finished.record

    @property
    def label(self) -> str:
        """Label of the stage in tables, such as `tapt · TAPT · acl_arc`."""
        return " · ".join([self.name, *self.values.values()])

    @property
    def result(self) -> Any:
        """The result of the finished stage.

        Raises:
            StageError: the record does not contain a result of the expected class.
        """
        return self.finished.result


@dataclass(frozen=True)
class Study:
    """The chain of a report, with its results so far."""

    name: str
    baseline: str
    """Member of the set `recipe` that other recipes are compared with."""
    entries: list[Entry]
    missing: list[str] = field(default_factory=list)
    """Labels of stages that have not run, such as `finetune[DAPT, acl_arc, 3]`."""
    models: list[str] = field(default_factory=list)
    """Models that the chain started from, as given in the configuration."""
    warnings: list[str] = field(default_factory=list)
    """Warnings that the report shows."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Current label of each stage, keyed by the stage's key. Records have the labels from the time of the run."""
    margin: Margin = MARGIN
    """Largest differences that do not matter."""
    looks: Sequence[Looked] | None = None
    """Finished looks of a sequential study, with earlier looks first. None for other studies."""

    def name_of(self, record: Record) -> str:
        """Returns the current label of a stage."""
        return self.names.get(record.key, record.name)


def row_names(name: str, values: Mapping[str, str], task: str, with_entry: bool) -> tuple[str, ...]:
    """Returns the name of the row that a fine-tuning run belongs to, such as `("acl_arc", "mode=lora")`.

    Args:
        name: name of the run's entry in the chain file.
        values: the swept values.
        task: name of the task, if no set is called `task`.
        with_entry: whether the name of the entry is part of the row's name.
    """
    more = [f"{key}={value}" for key, value in values.items() if key not in ("recipe", "task", "seed")]
    return (values.get("task", task), *([name] if with_entry else []), *more)


def method_name(name: str, values: Mapping[str, str]) -> str:
    """Returns the name of a sequence's method: the swept values except order and seed, or else the entry's name."""
    return " · ".join(value for key, value in values.items() if key not in ("order", "seed")) or name


def record_at(folder: str | Path) -> Record | None:
    """Reads the record of the stage in a folder. Returns None if the record is gone or cannot be read."""
    try:
        return load_record(Path(folder))
    except StageError:
        return None


def upstream(record: Record, name: str) -> Record | None:
    """Reads the record of an input of a stage. Returns None if the stage has no such input or the record is gone."""
    return record_at(record.inputs[name]["path"]) if name in record.inputs else None
