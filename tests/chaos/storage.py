"""Reads and damages the storage root of a chain.

`Root` is the interface that the faults use. `LocalRoot` implements it for a folder. A bucket would need its own class.
"""

import json
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any, Protocol

from adapt.runner.files import ASIDE
from adapt.train.checkpoints.stored_checkpoints import newest_whole, step_of
from adapt.train.restarts import RestartLog

LISTS = re.compile(
    r"(^|/)(logs|tensorboard|reports|stalls|checkpoints)/|restarts\.jsonl$|held_time\.jsonl$|README\.md$"
)
"""Pattern of files whose number or names differ between runs: logs, restarts, and last checkpoints."""


class Root(Protocol):
    """Storage root of one chain."""

    url: str
    """Value of `storage.root`."""

    def records(self) -> dict[str, dict[str, Any]]:
        """Returns the record of each finished stage, keyed by kind and folder, as in `train/model-0123456789abcdef`."""

    def steps(self) -> int:
        """Returns the number of training steps that the chain has reported so far."""

    def saved(self) -> int:
        """Returns the step of the newest complete checkpoint, or 0."""

    def redone_steps(self) -> int:
        """Returns the number of training steps that were computed more than once."""

    def names(self) -> set[str]:
        """Returns the names of all files, without files whose names differ between complete runs."""

    def partial(self) -> list[str]:
        """Returns the names of files that a process began to write and did not finish."""

    def flip(self, kind: str, pattern: str, draw: Random) -> str | None:
        """Inverts a random bit of a random file of a stage.

        Returns:
            Name of the file in its stage's folder, or None if there is no such file.
        """

    def forget(self, kind: str) -> None:
        """Deletes the records of the stages of a kind, as the messages about damaged files tell the user to do."""

    def remove(self) -> None:
        """Deletes the whole storage root."""


class LocalRoot:
    """Storage root in a folder.

    Args:
        folder: the folder. It is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.url = folder, str(folder)

    def records(self) -> dict[str, dict[str, Any]]:
        return {
            f"{file.parent.parent.name}/{file.parent.name}": json.loads(file.read_text())
            for file in sorted(self.folder.glob("*/*/stage.json"))
        }

    def steps(self) -> int:
        files = list(self.folder.glob("train/*/metrics.jsonl"))
        lines = files[0].read_text().rpartition("\n")[0].splitlines() if files else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def saved(self) -> int:
        (run, *_) = [*self.folder.glob("train/*/checkpoints/*/"), self.folder]
        whole = newest_whole(run)
        return step_of(whole) if whole else 0

    def redone_steps(self) -> int:
        return sum(RestartLog(folder).restarts().redone_steps for folder in self.folder.glob("train/*/"))

    def names(self) -> set[str]:
        files = (str(file.relative_to(self.folder)) for file in self.folder.rglob("*") if file.is_file())
        return {name for name in files if not LISTS.search(name)}

    def partial(self) -> list[str]:
        return [str(file.relative_to(self.folder)) for file in self.folder.rglob(f"*{ASIDE}")]

    def flip(self, kind: str, pattern: str, draw: Random) -> str | None:
        files = [file for file in sorted(self.folder.glob(f"{kind}/*/{pattern}")) if file.stat().st_size]
        if not files:
            return None
        file = draw.choice(files)
        content = bytearray(file.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        return file.name

    def forget(self, kind: str) -> None:
        for file in self.folder.glob(f"{kind}/*/stage.json"):
            file.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def models(records: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Returns the SHA-256 of the weights of all exported models, keyed by stage and file."""
    return {
        f"{stage}/{name}": digest
        for stage, record in records.items()
        if record["stage"] == "export"
        for name, digest in record["digests"].items()
        if name.endswith(".safetensors")
    }


def identity(record: dict[str, Any]) -> str:
    """Returns a text that identifies one run of a stage: it changes if the stage runs again."""
    return json.dumps([record["started_at"], record["cost"], record["digests"]], sort_keys=True)
