"""What a report is made of: finished stages, each with its place in the chain."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from adapt.runner.record import Record


@dataclass(frozen=True)
class Entry:
    """One finished stage of a chain."""

    name: str
    """Of the entry in the chain file: `dapt`, `tapt`, `finetune` ..."""
    job: str
    """What it is: dapt, tapt, finetune or evaluate."""
    values: Mapping[str, str]
    """What it was swept over: `{"recipe": "DAPT", "task": "acl_arc", "seed": "3"}`; empty where nothing was swept."""
    record: Record
    """For `finetune`, of one seed; for `dapt` and `tapt`, of their `export` stage."""
    trained: tuple[str, ...] = ()
    """`finetune`: keys of the `train` stages that made the model, first one first; empty for the model as it came."""
    task: str = ""
    """`finetune`: the name that its task goes by now; a record keeps none, since a name determines nothing."""


@dataclass(frozen=True)
class Study:
    """A chain and what it has done so far."""

    name: str
    baseline: str
    """Of the set `recipe`: what the others are compared to."""
    entries: list[Entry]
    missing: list[str] = field(default_factory=list)
    """Stages that have not run, as `finetune[DAPT, acl_arc, 3]`."""
    models: list[str] = field(default_factory=list)
    """What the chain started from, as configured."""
    warnings: list[str] = field(default_factory=list)
    """What the chain's reader should know."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By a stage's key, what it is called now; a record has the name it was made under."""

    def name_of(self, record: Record) -> str:
        """What a stage is called."""
        return self.names.get(record.key, record.name)
