"""Turns results into plain values for a record, and back."""

from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from adapt.errors import StageError
from adapt.runner.record import RECORD_FILE, Record

R = TypeVar("R")


def plain_values(result: Any) -> dict[str, Any]:
    """A result as JSON values.

    Raises:
        TypeError: it is no dataclass.
    """
    if not is_dataclass(result) or isinstance(result, type):
        raise TypeError(f"the result of a stage is a dataclass, not {result!r}")
    return {name: _plain(value) for name, value in asdict(result).items()}


def read_result(kind: type[R], record: Record) -> R:
    """The result that a record keeps.

    Raises:
        StageError: the record's metrics are not those of such a result.
    """
    from pydantic import ValidationError

    try:
        result: R = _adapter(cast(Any, kind)).validate_python(record.metrics)
    except ValidationError as error:
        first = error.errors()[0]
        raise _misfit(record, ".".join(map(str, first["loc"])), first["msg"]) from error
    return result


def check_record(kind: type[Any], record: Record) -> None:
    """Refuses a record that lacks a field of such a result. Unlike `read_result` it needs no pydantic.

    Raises:
        StageError: it does.
    """
    for each in fields(kind):
        if each.name not in record.metrics and each.default is each.default_factory is MISSING:
            raise _misfit(record, each.name, "there is none")


def _misfit(record: Record, place: str, why: str) -> StageError:
    return StageError(
        f"{record.path / RECORD_FILE} does not hold a result of stage {record.stage}: {place}: {why}",
        f"delete the folder {record.path} to run the stage again",
    )


@cache
def _adapter(kind: type[Any]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
