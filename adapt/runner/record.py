"""The record of a finished stage: the file `stage.json`, which is written last. Without it, a stage is unfinished.

A record contains the cost of the stage, and the stage's result as plain values, from which `read_result` rebuilds it.
"""

import json
from collections.abc import Mapping, Sequence
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
    """Configuration, inputs, result and cost of a finished stage."""

    stage: str
    """Kind of the stage, for example `train`."""
    name: str
    """Readable name of the stage, from the configuration."""
    key: str
    """Key of the stage (SHA-256)."""
    version: int
    """Version of the stage's code. Developers increase it by hand; see `adapt.runner.stage.Stage`."""
    what: dict[str, Any]
    """Configuration that determines the key."""
    inputs: dict[str, dict[str, str]]
    """Kind, key and path of each input stage, keyed by the name of the input."""
    metrics: dict[str, Any]
    """Result of the stage as plain values."""
    cost: dict[str, Any]
    """Duration [s], device time [s], number of tokens, and other costs."""
    resources: dict[str, Any]
    """Devices and settings that the stage ran with."""
    outputs: dict[str, int]
    """Sizes of the output files [bytes], keyed by path; see `adapt.runner.digest`."""
    packages: dict[str, str]
    """Versions of the packages that the stage ran with."""
    started_at: str
    """Time at which the run started (UTC, ISO 8601)."""
    path: Path = field(default=Path(), compare=False)
    """Folder in which the record was found. It is not stored in the file."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the output files, keyed by path. Empty in records of earlier versions."""

    def to_json(self) -> str:
        """Returns the content of the record's file. Passwords and signatures are removed from URLs."""
        values = asdict(self)
        del values["path"]
        return json.dumps(redacted(values), indent=2) + "\n"

    def save(self) -> None:
        """Writes the record, which makes the stage finished."""
        write_atomically(self.path / RECORD_FILE, self.to_json())


def load_record(folder: Path, text: str | None = None) -> Record | None:
    """Loads the record in a folder. Returns None if the stage is unfinished.

    Args:
        folder: folder of the stage.
        text: content of the record's file, if it is known without reading the file.

    Raises:
        StageError: the record cannot be read or is damaged.
    """
    file = folder / RECORD_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8") if text is None else text)
        _check(values)
        return Record(**values, path=folder)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise StageError(
            f"{file} cannot be read: {error.strerror}",
            "ask its owner for permission to read it, or use another storage.root",
        ) from error
    except NotADirectoryError as error:
        file_above = next((parent for parent in reversed(folder.parents) if parent.is_file()), folder)
        raise StageError(
            f"{file_above} is a file, but dontstop needs a folder with this name", f"move {file_above} away"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        why = "is damaged" if isinstance(error, RecursionError) else f"cannot be read: {error}"
        raise StageError(
            f"{file} {why}",
            f"delete {file}: the stage runs again, and a training resumes from its last checkpoint",
        ) from error


def _check(values: Any) -> None:
    """Raises ValueError unless `values` has exactly the fields of a record, with values of the right types."""
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    known = {declared.name: declared for declared in fields(Record) if declared.name != "path"}
    needed = {name for name, declared in known.items() if declared.default_factory is MISSING}
    if missing := sorted(needed - values.keys()):
        raise ValueError(f"it has no field {missing[0]}")
    if unknown := sorted(values.keys() - known.keys()):
        raise ValueError(f"it has the field {unknown[0]}, which this version of dontstop does not know")
    for name, value in values.items():
        kind: Any = get_origin(known[name].type) or known[name].type
        if type(value) is not kind:
            raise ValueError(f"its field {name} is not of type {kind.__name__}")
    for name, source in values["inputs"].items():
        if not isinstance(source, dict) or not all(isinstance(source.get(k), str) for k in ("stage", "key", "path")):
            raise ValueError(f"its input {name} does not have a stage, a key and a path")
    if not all(type(size) is int for size in values["outputs"].values()):
        raise ValueError("its field outputs holds values that are not file sizes")
    if not all(isinstance(digest, str) for digest in values.get("digests", {}).values()):
        raise ValueError("its field digests holds values that are not digests")


R = TypeVar("R")


def plain_values(result: Any) -> dict[str, Any]:
    """Converts a result to JSON values."""
    if not is_dataclass(result) or isinstance(result, type):
        raise TypeError(f"the result of a stage is a dataclass, not {result!r}")
    return {name: _plain(value) for name, value in asdict(result).items()}


def read_result(kind: type[R], record: Record) -> R:
    """Reads the result of a stage from its record.

    A class of results whose fields have changed has a class method `of_earlier`. It converts the metrics of a record of
    any version to the current fields.

    Raises:
        StageError: the record's metrics are not a result of this class.
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
    """Checks that a record has all required fields of a class of results."""
    for declared in fields(kind):
        if declared.name not in record.metrics and declared.default is declared.default_factory is MISSING:
            raise _misfit(record, declared.name, "this field is missing")


def _misfit(record: Record, name: str, why: str) -> StageError:
    return StageError(
        f"{record.path / RECORD_FILE} does not hold a result of stage {record.stage}: {name}: {why}",
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
    """Returns the device time and its cost in the currency of the price. The cost is None if no price is set."""
    hours = device_seconds / 3600
    cost = None if price_per_hour is None else hours * price_per_hour
    return {"device_seconds": device_seconds, "device_hours": hours, "cost": cost}


def summed_costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Adds up the costs of several stages. A sum is None if one of the stages has no value."""
    if len(costs) == 1:
        return dict(costs[0])
    names = dict.fromkeys(name for cost in costs for name in cost)
    values = {name: [cost.get(name) for cost in costs] for name in names}
    return {name: None if None in of else sum(of) for name, of in values.items()}


class OneModel:
    """Base class for the results of stages that write exactly one model to their folder."""

    def models_made(self, record: Record) -> dict[str, Path]:
        """Returns the folder of the stage's only model, under the key ""."""
        return {"": record.path}
