"""What a report covers: the finished stages of a chain, each with its entry in the chain file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.runner import Finished
from adapt.runner.record import Record, load_record
from adapt.support.errors import StageError

HTML = "report.html"
"""File name of a report's page."""


@dataclass(frozen=True)
class Entry:
    """A finished stage of a chain."""

    name: str
    """The name of the entry in the chain file, such as `dapt`, `tapt`, `finetune`."""
    job: str
    """The job that the entry runs: `dapt`, `tapt`, `finetune` or `evaluate`."""
    values: Mapping[str, str]
    """The swept values, such as `{"recipe": "DAPT", "task": "acl_arc", "seed": "3"}`; empty if nothing was swept."""
    finished: Finished[Any]
    """The stage with its record and result: the run of one seed for `finetune`, the `export` stage for `dapt` and
    `tapt`."""
    trained: tuple[str, ...] = ()
    """For `finetune`, the keys of the `train` and `merge` stages that made the model, in order; empty if the chain did
    not make the model."""
    task: str = ""
    """For `finetune`, the task's current name. The record has no name, because the name does not affect results."""

    @property
    def record(self) -> Record:
        """The record of the stage."""
        return self.finished.record

    @property
    def label(self) -> str:
        """Label of the stage in tables, such as `tapt · TAPT · acl_arc`."""
        return " · ".join([self.name, *self.values.values()])

    @property
    def result(self) -> Any:
        """The result of the stage.

        Raises:
            StageError: the record does not hold such a result.
        """
        return self.finished.result


@dataclass(frozen=True)
class Study:
    """The chain of a report and its results so far."""

    name: str
    baseline: str
    """The member of the set `recipe` that other recipes are compared with."""
    entries: list[Entry]
    missing: list[str] = field(default_factory=list)
    """The labels of stages that have not run, such as `finetune[DAPT, acl_arc, 3]`."""
    models: list[str] = field(default_factory=list)
    """The models that the chain started from, as configured."""
    warnings: list[str] = field(default_factory=list)
    """Warnings for the reader of the report."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The current label of each stage, by its key. The record has the label at the time of the run."""

    def name_of(self, record: Record) -> str:
        """Returns the label of a stage."""
        return self.names.get(record.key, record.name)


def record_at(folder: str | Path) -> Record | None:
    """Reads the record of a stage in a folder; None if it is gone or cannot be read."""
    try:
        return load_record(Path(folder))
    except StageError:
        return None


def upstream(record: Record, name: str) -> Record | None:
    """Reads the record of one of a stage's inputs; None if there is no such input or its record is gone."""
    return record_at(record.inputs[name]["path"]) if name in record.inputs else None
