"""Where stages live: `{root}/{stage}/{name}-{first 16 of key}/`; and their logs, in `{root}/logs/`.

A log is a file of JSON lines: what a stage has said while it ran. It stays where the stage fails.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.runner.files import make_folder
from adapt.runner.key import changes
from adapt.runner.outputs import check_outputs
from adapt.runner.record import RECORD_FILE, Record, load_record
from adapt.support.errors import StageError
from adapt.terminal.console import log, note, telling

if TYPE_CHECKING:
    from adapt.runner.stage import Stage

_passed_over: set[Path] = set()
"""Records that this process has named, since it could not read them."""
DIGITS = 16
"""Digits of the key in the name of a stage's folder. In a store of a million stages two share them with a chance of 1
in 40 million."""


class Store:
    """Finds the folders and records of stages below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, stage: str, name: str, key: str) -> Path:
        """The folder of a stage: the one it has, also under an earlier name, or the one it will get.

        Where there are several (a copy that was cut short, say), one in which it is finished.
        """
        existing = sorted((self.root / stage).glob(f"*-{key[:DIGITS]}"))
        finished = (folder for folder in existing if os.path.exists(folder / RECORD_FILE))  # False without the right
        return next(finished, existing[0] if existing else self.root / stage / f"{name}-{key[:DIGITS]}")

    def folder_of(self, stage: "Stage[Any]") -> Path:
        """The folder of a stage, as `folder`."""
        return self.folder(stage.kind, stage.name, stage.key)

    def find(self, stage: str, name: str, key: str) -> Record | None:
        """The record of a finished stage with this key, whose files are there, under the name it goes by now.

        Raises:
            StageError: they are not (see `adapt.runner.outputs.check_outputs`), or as `known`.
        """
        record = self.known(stage, name, key)
        if record:
            check_outputs(record)
        return record

    def known(self, stage: str, name: str, key: str) -> Record | None:
        """The record of a finished stage with this key, as `find` gives it, but without looking at the stage's files.

        Raises:
            StageError: there is one but it cannot be understood, or it is another stage's.
        """
        folder = self.folder(stage, name, key)
        record = load_record(folder)
        if record and record.key != key:
            raise StageError(
                f"{folder} holds another stage, of key {record.key}", "move that folder away, or give it another name"
            )
        return replace(record, name=name) if record else None

    def record_of(self, stage: "Stage[Any]") -> Record | None:
        """The record of a stage if it is finished, as `known`."""
        return self.known(stage.kind, stage.name, stage.key)

    def records(self, stage: str = "*") -> Iterator[Record]:
        """Every finished stage of a kind, in the order of their folders' names.

        Records that cannot be read are passed over, and each is named once per process: they may be somebody else's.
        """
        for file in sorted(self.root.glob(f"{stage}/*/stage.json")):
            try:
                record = load_record(file.parent)
            except StageError as error:
                if file not in _passed_over:
                    _passed_over.add(file)
                    log(f"passed over: {error.what}")
                continue
            if record:
                yield record

    def nearest(
        self, stage: str, version: int, what: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> tuple[Record, list[str]] | None:
        """The finished stage of this kind whose key differs in the fewest ingredients, and those."""
        new = _ingredients(version, what, inputs)
        candidates = [(record, changes(_of(record), new)) for record in self.records(stage)]
        return min(candidates, key=lambda pair: len(pair[1]), default=None)


def _of(record: Record) -> dict[str, Any]:
    return _ingredients(record.version, record.what, {name: made["key"] for name, made in record.inputs.items()})


def _ingredients(version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    keys = {f"input {name}": key for name, key in inputs.items()}
    return {**what, **keys, "version of the stage's code": version}


LOGS = "logs"
"""The folder of all logs, in the storage root."""


def log_of(folder: Path) -> Path:
    """The log of the stage with a folder."""
    return folder.parent.parent / LOGS / folder.parent.name / f"{folder.name}.jsonl"


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Keeps what this thread logs, and how the block ended, in the stage's log."""
    file = log_of(folder)
    with suppress(OSError):
        make_folder(file.parent)
    with telling(file, stage=f"{folder.parent.name}/{folder.name}"):
        try:
            yield
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            note(lines[0], failed=True)
            raise


def logged_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a stage's log, over all of its runs, the oldest first."""
    try:
        lines = log_of(folder).read_text(errors="replace").splitlines()
    except OSError:  # there is none, or it is another user's
        return
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):  # the last one may be half written
            yield dict(json.loads(line))


def failure_of(folder: Path) -> str | None:
    """What the stage failed with, if its last run failed and none has begun since."""
    *_, last = [{}, *logged_lines(folder)]
    return str(last["message"]) if last.get("failed") else None
