"""Helpers that make records of stages without running the stages."""

from pathlib import Path
from typing import Any

from adapt.runner import Done, Record, Stage
from adapt.runner.record import plain_values
from tests.runner.made import made_up


def record_of(stage: Stage[Any], cost: dict[str, Any] | None = None, **figures: Any) -> Record:
    """Returns the record that a stage would write if it ran.

    Args:
      stage: stage whose record is made.
      cost: cost entry of the record. None means an empty entry.
      figures: fields of the stage's result. The other fields get placeholder values.
    """
    none: dict[str, Any] = {}
    result = plain_values(made_up(stage.result_type(), **figures))
    return Record(
        stage.kind, stage.name, stage.key, stage.version, none, none, result, cost or {}, none, none, none, "",
        Path(stage.kind) / stage.name,
    )  # fmt: skip


def done_of(*records: Record) -> Done:
    return Done({record.key: record for record in records})
