"""The record of a finished stage: `stage.json`, written last. A folder without it is unfinished."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adapt.errors import StageError
from adapt.redact import redacted
from adapt.runner.files import write_atomically

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
        return Record(**values, path=folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StageError(
            f"{file} cannot be read: {error}", f"delete the folder {folder} to run the stage again"
        ) from error
