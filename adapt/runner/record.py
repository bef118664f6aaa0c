"""The record of a finished stage: `stage.json`, written last. A folder without it is unfinished.

A record holds the stage's result as plain values, from which the result is read again, and what it cost.
"""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_origin

from pydantic import TypeAdapter, ValidationError

from adapt.runner.files import write_atomically
from adapt.support.errors import StageError
from adapt.support.redact import redacted

RECORD_FILE = "stage.json"


@dataclass(frozen=True)
class Record:
    """What a finished stage did, from what, and at what cost."""

    stage: str
    """Kind of stage, for example `train`."""
    name: str
    """Readable name from the configuration."""
    key: str
    """Identity (SHA-256)."""
    version: int
    """Hand-bumped version of the stage's code; see `adapt.runner.stage.Stage`."""
    what: dict[str, Any]
    """The configuration that entered the key."""
    inputs: dict[str, dict[str, str]]
    """The kind, key and path of each input stage."""
    metrics: dict[str, Any]
    """The stage's result as plain values."""
    cost: dict[str, Any]
    """Seconds, device-seconds, tokens."""
    resources: dict[str, Any]
    """The devices and settings that the stage ran on."""
    outputs: dict[str, int]
    """Files that it hands over and their sizes [bytes]; see `adapt.runner.outputs`."""
    packages: dict[str, str]
    """Versions of the packages that did the work."""
    started_at: str
    """UTC, ISO 8601."""
    path: Path = field(default=Path(), compare=False)
    """The stage's folder (where it is now, not what the file says)."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that it hands over; empty in records of earlier versions."""

    def save(self) -> None:
        """Commits the stage: after this it is finished. URLs in it are without passwords and signatures."""
        values = asdict(self)
        del values["path"]
        write_atomically(self.path / RECORD_FILE, json.dumps(redacted(values), indent=2) + "\n")


def load_record(folder: Path) -> Record | None:
    """The record of a folder, or None where the stage is unfinished.

    Raises:
        StageError: there is a record but it cannot be understood.
    """
    file = folder / RECORD_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        _check(values)
        return Record(**values, path=folder)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise StageError(
            f"{file} cannot be read: {error.strerror}",
            "ask its owner for the right to read it, or use another storage.root",
        ) from error
    except NotADirectoryError as error:
        place = next((each for each in reversed(folder.parents) if each.is_file()), folder)
        raise StageError(f"{place} is a file, where stages have a folder", f"move {place} away") from error
    except (OSError, ValueError, RecursionError) as error:
        why = "is damaged" if isinstance(error, RecursionError) else f"cannot be read: {error}"
        raise StageError(
            f"{file} {why}",
            f"delete {file}: the stage runs again, and a training goes on from its last checkpoint",
        ) from error


def _check(values: Any) -> None:
    """Raises ValueError unless the content of a record's file has the fields of a record, of the right types."""
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    known = {each.name: each for each in fields(Record) if each.name != "path"}
    needed = {name for name, each in known.items() if each.default_factory is MISSING}
    if missing := sorted(needed - values.keys()):
        raise ValueError(f"it has no field {missing[0]}")
    if unknown := sorted(values.keys() - known.keys()):
        raise ValueError(f"it has the field {unknown[0]}, which this version of dontstop does not know")
    for name, value in values.items():
        kind: Any = get_origin(known[name].type) or known[name].type
        if type(value) is not kind:
            raise ValueError(f"its field {name} is not of type {kind.__name__}")
    for name, made in values["inputs"].items():
        if not isinstance(made, dict) or not all(isinstance(made.get(each), str) for each in ("stage", "key", "path")):
            raise ValueError(f"its input {name} is not a stage, key and path")
    if not all(type(size) is int for size in values["outputs"].values()):
        raise ValueError("its field outputs holds other values than sizes")
    if not all(isinstance(digest, str) for digest in values.get("digests", {}).values()):
        raise ValueError("its field digests holds other values than digests")


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
    """Reads the result that a record keeps.

    A class of results whose fields have changed has a class method `of_earlier`, which takes the metrics of a record of
    any version and returns them as its fields are now.

    Raises:
        StageError: the record's metrics are not those of such a result.
    """
    of_earlier = getattr(kind, "of_earlier", None)
    metrics = of_earlier(record.metrics) if of_earlier else record.metrics
    try:
        result: R = _adapter(cast(Any, kind)).validate_python(metrics)
    except ValidationError as error:
        first = error.errors()[0]
        raise _misfit(record, ".".join(map(str, first["loc"])), first["msg"]) from error
    return result


def check_record(kind: type[Any], record: Record) -> None:
    """Refuses a record that lacks a field of such a result.

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
    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def cost_of(device_seconds: float, price_per_hour: float | None) -> dict[str, Any]:
    """The device time, and what it costs in the currency of the price; None where no price is given."""
    hours = device_seconds / 3600
    cost = None if price_per_hour is None else hours * price_per_hour
    return {"device_seconds": device_seconds, "device_hours": hours, "cost": cost}


class OneModel:
    """The result of a stage that makes one model, in its folder."""

    def models_made(self, record: Record) -> dict[str, Path]:
        """The folder of the model that was made, under an empty name."""
        return {"": record.path}
