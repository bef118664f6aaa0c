"""Finds stages in `{root}/{stage}/{name}-{first 16 digits of key}/`, and their logs in `{root}/logs/`.

A log is a JSON lines file with the messages that a stage logged while it ran. It remains if the stage fails.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapt.runner import digest, mirror
from adapt.runner.bucket_records import DIGITS
from adapt.runner.files import make_folder
from adapt.runner.record import RECORD_FILE, Record, load_record
from adapt.runner.stage import Stage, changes
from adapt.support.errors import StageError
from adapt.terminal.console import json_line, log, log_values

LONGEST_NAME = 200
"""Maximum length of a stage's name in the name of its folder [bytes]. Most file systems allow 255 bytes for the name of
a file or folder, and locks, logs and temporary folders have longer names than the stage's folder."""
_passed_over: set[Path] = set()
"""Folders of unreadable records about which this process has already logged a warning."""


class Store:
    """Finds the folders and records of stages below one root.

    Args:
        root: folder of all stages, or the local copy of a bucket (`adapt.runner.mirror`).
        admit: function that is called before a stage runs. It raises an error if the stage may not start, for example
            because the budget is spent.
    """

    def __init__(self, root: Path, admit: Callable[[Stage[Any]], None] = lambda stage: None) -> None:
        self.root, self.admit = root, admit
        self.mirror = mirror.mirror_at(root)
        """Local copy of the bucket, if the storage root is a bucket. None if the storage root is a folder."""

    def folder(self, stage: str, name: str, key: str) -> Path:
        """Returns the existing folder of a stage, or else the folder that the stage will get.

        The name of a new folder contains at most the first LONGEST_NAME bytes of the stage's name. The existing folder
        may have an earlier name. If there are several folders, for example an incomplete copy, a folder in which the
        stage is finished is preferred.
        """
        if self.mirror and (made := self.mirror.records.folder(stage, key)):
            return made
        of_kind, ending = self.root / stage, f"-{key[:DIGITS]}"
        if len(os.fsencode(name)) > LONGEST_NAME:
            name = os.fsencode(name)[:LONGEST_NAME].decode(errors="ignore")  # without an incomplete last character
        own = of_kind / f"{name}{ending}"
        # uses os.path.exists, which returns False if this user may not enter the folder
        if os.path.exists(own / RECORD_FILE):
            return own  # does not list other stages of this kind, because listing thousands of folders takes long
        existing: list[Path] = []
        with suppress(OSError):
            existing = sorted(of_kind / found for found in os.listdir(of_kind) if found.endswith(ending))
        finished = (folder for folder in existing if os.path.exists(folder / RECORD_FILE))
        return next(finished, existing[0] if existing else own)

    def folder_of(self, stage: "Stage[Any]") -> Path:
        """Returns the folder of a stage, as `folder` does."""
        return self.folder(stage.kind, stage.name, stage.key)

    def begun(self, stage: "Stage[Any]") -> Path:
        """Returns the folder of a stage, as `folder_of` does, even if the stage was begun on another machine.

        Raises:
            StorageError: the bucket cannot be read.
        """
        folder = self.folder_of(stage)
        return self.mirror.begun(folder) if self.mirror and not self.record_of(stage) else folder

    def find_now(self, stage: "Stage[Any]") -> Record | None:
        """Loads the record of a stage, as `find` does, even if another machine wrote it a moment ago."""
        if self.mirror:
            self.mirror.records.look(stage.kind, stage.key)
        return self.find(stage.kind, stage.name, stage.key)

    def check(self, records: Iterable[Record]) -> None:
        """Checks that the files of finished stages are in the bucket. If the root is a folder, `find` checks them.

        Raises:
            StageError: files are missing or have another size.
        """
        if self.mirror:
            for record in records:
                self.mirror.check(record)

    def clean_up(self) -> None:
        """Deletes files that killed processes left in the bucket. Does nothing if the root is a folder."""
        if self.mirror:
            self.mirror.clean_up()

    def follow(self, stages: "Iterable[Stage[Any]]") -> None:
        """Copies the logs and metrics of stages from the bucket for display. Does nothing if the root is a folder."""
        if self.mirror:
            for stage in stages:
                self.mirror.follow(self.folder_of(stage), self.record_of(stage))

    def find(self, stage: str, name: str, key: str) -> Record | None:
        """Loads the record of the stage with this key, and checks its files.

        Returns None if the stage is not finished.

        The returned record has the name `name`, even if the stage was finished under another name.

        Raises:
            StageError: files are missing or have another size (see `adapt.runner.digest.check_outputs`), or as in
                `known`.
        """
        record = self.known(stage, name, key)
        if record and not self.mirror:
            digest.check_outputs(record)
        return record

    def known(self, stage: str, name: str, key: str) -> Record | None:
        """Loads the record of the stage with this key, as `find` does, but does not check the stage's files.

        Raises:
            StageError: the record cannot be read, or belongs to another stage.
        """
        folder = self.folder(stage, name, key)
        if self.mirror and not self.mirror.records.folder(stage, key):
            return None  # a record in the local copy is ignored if the bucket has no record
        record = load_record(folder)
        if record and record.key != key:
            raise StageError(
                f"{folder} already holds another stage, whose key is {record.key}",
                "move that folder away, or rename it",
            )
        return replace(record, name=name) if record else None

    def record_of(self, stage: "Stage[Any]") -> Record | None:
        """Loads the record of a stage, as `known` does. Returns None if the stage is not finished."""
        return self.known(stage.kind, stage.name, stage.key)

    def records(self, stage: str = "*") -> Iterator[Record]:
        """Yields the records of all finished stages of a kind, ordered by folder name.

        Records that cannot be read are skipped, because they may belong to other users. Each skipped record is logged
        once per process.
        """
        if self.mirror:
            folders, load = self.mirror.records.folders(stage), self.mirror.records.load
        else:
            folders, load = [file.parent for file in sorted(self.root.glob(f"{stage}/*/{RECORD_FILE}"))], load_record
        for folder in folders:
            try:
                record = load(folder)
            except StageError as error:
                if folder not in _passed_over:
                    _passed_over.add(folder)
                    log(f"skipped a record: {error.what}")
                continue
            if record:
                yield record

    def nearest(
        self, stage: str, version: int, what: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> tuple[Record, list[str]] | None:
        """Finds the finished stage of this kind whose configuration and inputs differ least. Lists the differences."""
        new = _ingredients(version, what, inputs)
        candidates = [(record, changes(_of(record), new)) for record in self.records(stage)]
        return min(candidates, key=lambda pair: len(pair[1]), default=None)


def _of(record: Record) -> dict[str, Any]:
    return _ingredients(record.version, record.what, {name: made["key"] for name, made in record.inputs.items()})


def _ingredients(version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    keys = {f"input {name}": key for name, key in inputs.items()}
    return {**what, **keys, "version of the stage's code": version}


LOGS = "logs"
"""Name of the folder with all logs, in the storage root."""


def log_of(folder: Path) -> Path:
    """Returns the path of a stage's log, from the stage's folder."""
    return folder.parent.parent / LOGS / folder.parent.name / f"{folder.name}.jsonl"


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Writes to the stage's log the messages that this thread logs in the block, and the block's error if it fails."""
    file = log_of(folder)
    with suppress(OSError):
        make_folder(file.parent)
    with log_values(file, stage=f"{folder.parent.name}/{folder.name}"):
        try:
            yield
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            json_line(lines[0], failed=True)
            raise


def logged_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a stage's log from all runs of the stage, oldest first."""
    try:
        lines = log_of(folder).read_text(errors="replace").splitlines()
    except OSError:  # there is no log, or this user may not read it
        return
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):  # the last line may be incomplete
            yield dict(json.loads(line))


def failure_of(folder: Path) -> str | None:
    """Returns the message of a stage's failure if the last run of the stage failed, else None."""
    *_, last = [{}, *logged_lines(folder)]
    return str(last["message"]) if last.get("failed") else None
