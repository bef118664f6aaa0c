"""Turns results into plain values for a record, and back."""

from dataclasses import asdict, is_dataclass
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
        at = ".".join(map(str, first["loc"]))
        raise StageError(
            f"{record.path / RECORD_FILE} does not hold a result of stage {record.stage}: {at}: {first['msg']}",
            f"delete the folder {record.path} to run the stage again",
        ) from error
    return result


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
