"""What a report is made of: finished stages, each with its place in the chain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.runner import Finished
from adapt.runner.record import Record, load_record
from adapt.support.errors import StageError

HTML = "report.html"
"""The name of a report's page."""


@dataclass(frozen=True)
class Entry:
    """One finished stage of a chain."""

    name: str
    """The name of the entry in the chain file, such as `dapt`, `tapt`, `finetune`."""
    job: str
    """The job that the entry runs: `dapt`, `tapt`, `finetune` or `evaluate`."""
    values: Mapping[str, str]
    """What it was swept over: `{"recipe": "DAPT", "task": "acl_arc", "seed": "3"}`; empty where nothing was swept."""
    finished: Finished[Any]
    """The stage with its record and its result: for `finetune` one seed, for `dapt` and `tapt` their `export` stage."""
    trained: tuple[str, ...] = ()
    """For `finetune`, the keys of the `train` and `merge` stages that made the model, first one first; empty if the
    model was not made here."""
    task: str = ""
    """For `finetune`, the name that its task goes by now; a record keeps none, since a name determines nothing."""

    @property
    def record(self) -> Record:
        """The record of the stage."""
        return self.finished.record

    @property
    def label(self) -> str:
        """What the stage is called in tables, such as `tapt · TAPT · acl_arc`."""
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
    """A chain and what it has done so far."""

    name: str
    baseline: str
    """The member of the set `recipe` that the others are compared to."""
    entries: list[Entry]
    missing: list[str] = field(default_factory=list)
    """The labels of stages that have not run, such as `finetune[DAPT, acl_arc, 3]`."""
    models: list[str] = field(default_factory=list)
    """The models that the chain started from, as configured."""
    warnings: list[str] = field(default_factory=list)
    """What a reader of the report should be warned of."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What each stage is called now, by its key; a record has the name that it was made under."""

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
