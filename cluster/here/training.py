"""What the reports of a training say while others do with it what they will."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Reports:
    """What the only training below a storage root has reported."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def steps(self) -> list[int]:
        """The steps that have been reported, as the file has them now."""
        text = "".join(file.read_text() for file in self._files())
        return [int(json.loads(line)["step"]) for line in text.rpartition("\n")[0].splitlines()]

    def beginning_again(self) -> Callable[[], int | None]:
        """What tells, from now on, at which step the training has begun again; None until it has, and has gone on."""
        (file,) = self._files()
        before, kept = file.stat().st_ino, list[int]()

        def resumed() -> int | None:
            if file.stat().st_ino == before:  # it is written anew, without the steps that are lost
                return None
            steps = self.steps()
            kept.append(len(steps))
            return steps[kept[0] - 1] if len(steps) > kept[0] else None

        return resumed

    def _files(self) -> list[Path]:
        return list(self._root.glob("train/*/metrics.jsonl"))


def exported(root: Path, name: str = "demo") -> dict[str, Any]:
    """What the record of the only model of this name says: above all, losses before and after.

    The log of the job is no place to look: Ray does not find it where nodes of one machine have folders of their own.
    """
    (record,) = root.glob(f"export/{name}-*/stage.json")
    found: dict[str, Any] = json.loads(record.read_text())["metrics"]
    return found
