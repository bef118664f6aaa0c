"""Reads and writes the records of finished stages in a bucket, and limits the size of the bucket's local copy.

The object `records/KIND/KEY.json` is the record of a finished stage. KEY stands for the first digits of the stage's
key. The object is created once, by a conditional write, and never replaced. Its field `run` names the run that wrote
the stage's files (`adapt.runner.claim`). Each machine copies new records to the folders of their stages, and lists
them in `.records.json` with the ETags of the objects.

The object `packs/records`, called the pack, has copies of many records with their ETags, so that a new machine reads
them in one request. A machine writes the pack after it has written many records, or has read many records one by one. A
copy in the pack is valid only while the ETag of the record is unchanged. Records from the pack stay in memory until
their stages are used, because creating thousands of folders takes longer than reading the records.

A process that reads or writes a stage's folder holds a shared lock on the file `.NAME.use` next to the folder. The time
of that file is the folder's last use. `evict` removes files of finished stages that no process uses.
"""

import fcntl
import gzip
import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from adapt.runner.bucket import ABSENT, ReadObject, S3Bucket
from adapt.runner.bucket_errors import ConflictError
from adapt.runner.files import ASIDE, file_aside, make_folder, storage_errors, write_shared
from adapt.runner.lock import Lease
from adapt.runner.record import RECORD_FILE, Record, load_record
from adapt.support.errors import StageError, StorageError
from adapt.terminal.console import say_once

DIGITS = 16
"""Number of digits of a stage's key in the names of the stage's folder and objects.

Among a million stages, the chance that two of them have the same digits is 1 in 40 million.
"""
FRESH_S = 10.0
"""Age at which a list of objects is read again [s]."""
_RECORDS = "records"
_PACK = "packs/records"
_MANY = 100
"""The pack is read if this machine lacks at least this many records, and rewritten if the pack lacks this many."""
_PATIENCE_S = 10.0
_THREADS = 32


class BucketRecords:
    """The records in a bucket. Threads may share the object.

    Args:
        root: folder of the local copy of the bucket.
        bucket: the bucket.
    """

    def __init__(self, root: Path, bucket: S3Bucket) -> None:
        self._root, self._bucket = root, bucket
        self._lock = threading.RLock()
        self._looked = -FRESH_S
        self._faults: dict[str, str] = {}
        """Reason why each unusable record cannot be used, keyed by `KIND/DIGITS` (digits of the stage's key)."""
        self._committed: dict[str, ReadObject] = {}
        """New records of this process that the pack lacks, keyed by `KIND/DIGITS` (digits of the stage's key)."""
        self._unwritten: dict[Path, str] = {}
        """Records from the pack, keyed by the folder of their stage, in which they are not written yet."""
        self._file = root / ".records.json"
        self._known: Mapping[str, list[str]] = {}
        """ETag, folder and run of each record, keyed by `KIND/DIGITS` (digits of the stage's key)."""

    def folder(self, kind: str, key: str) -> Path | None:
        """Returns the folder of a finished stage, which contains the record. Returns None if there is no record.

        Raises:
            StageError: a program other than dontstop has changed the record.
            StorageError: the bucket cannot be read.
        """
        self.refresh()
        place = f"{kind}/{key[:DIGITS]}"
        if place in self._faults:
            raise StageError(
                self._faults[place],
                "restore the object's earlier version, or delete it: then the stage runs again, and a training resumes"
                " from its last checkpoint",
            )
        entry = self._known.get(place)
        if entry is None:
            return None
        self.write(self._root / entry[1])
        return self._root / entry[1]

    def write(self, folder: Path) -> None:
        """Writes the record of a finished stage into the stage's folder, if it was only in memory until now."""
        with self._lock:
            if folder in self._unwritten:
                _save(folder / RECORD_FILE, self._unwritten[folder])
                del self._unwritten[folder]

    def load(self, folder: Path) -> Record | None:
        """Loads the record of a finished stage, as `load_record` does, without writing it into the stage's folder."""
        return load_record(folder, self._unwritten.get(folder))

    def folders(self, kind: str) -> list[Path]:
        """Returns the folders of all finished stages of a kind, or of all kinds (`*`), ordered by name.

        Records that a program other than dontstop has changed are left out and logged.
        """
        self.refresh()
        for fault in list(self._faults.values()):
            say_once(fault)
        known = self._known.items()
        return sorted(self._root / folder for place, (_, folder, _) in known if kind in ("*", place.partition("/")[0]))

    def url(self, record: Record) -> str:
        """Returns the URL of a record."""
        return self._bucket.address.url(_object(f"{record.stage}/{record.key[:DIGITS]}"))

    def refresh(self, max_age_s: float = FRESH_S) -> None:
        """Copies all new and changed records, and removes the copies of records that the bucket no longer has.

        Does nothing if the list of records was read less than `max_age_s` ago.

        Raises:
            StorageError: the bucket cannot be read.
        """
        with self._lock:
            if time.monotonic() - self._looked < max_age_s:
                return
            index = self._read()  # read before the listing, so that the listing has all records of the index
            names = self._bucket.objects(f"{_RECORDS}/")
            there = {n.removeprefix(f"{_RECORDS}/").removesuffix(".json"): of.etag for n, of in names.items()}
            for gone in index.keys() - there.keys():
                folder = self._root / index.pop(gone)[1]
                self._unwritten.pop(folder, None)
                (folder / RECORD_FILE).unlink(missing_ok=True)
            self._faults = {place: fault for place, fault in self._faults.items() if place in there}
            wanted = [place for place, etag in there.items() if not self._has(index.get(place), etag)]
            packed = {}
            if len(wanted) >= _MANY:
                packed = {place: of for place, of in self._packed().items() if there.get(place) == of.etag}

            def copied(place: str) -> tuple[ReadObject | None, list[str] | None]:
                if read := packed.get(place):
                    return read, self._copy(place, read, is_written=False)
                read = self._bucket.get(_object(place))
                return read, self._copy(place, read)

            reads: dict[str, ReadObject] = {}
            with ThreadPoolExecutor(_THREADS) as threads:
                for place, (read, entry) in zip(wanted, threads.map(copied, wanted), strict=True):
                    index.pop(place, None)
                    if entry and read:
                        index[place], reads[place] = entry, read
            self._write(index)
            if len(reads.keys() - packed.keys()) >= _MANY:
                self._pack({**packed, **reads})
            self._looked = time.monotonic()

    def look(self, kind: str, key: str) -> None:
        """Copies the record of one stage to this machine now, if the record exists.

        Raises:
            StorageError: the bucket cannot be read.
        """
        place = f"{kind}/{key[:DIGITS]}"
        with self._lock:
            self.refresh()
            index = self._read()
            if place not in index and (entry := self._copy(place, self._bucket.get(_object(place)))):
                self._write({**index, place: entry})

    def run(self, kind: str, digits: str) -> str | None:
        """Returns the name of the run that finished a stage. Returns None if there is no record.

        Raises:
            StorageError: the bucket cannot be read.
        """
        self.refresh()
        entry = self._known.get(f"{kind}/{digits}")
        return entry[2] if entry else None

    def commit(self, record: Record, lease: Lease, run: str) -> None:
        """Creates the record of a stage in the bucket, after all its files, and copies the record to this machine.

        Args:
            record: the record.
            lease: the lease of the stage.
            run: name of the run that uploaded the files.

        Raises:
            ConflictError: another process finished the stage.
            StorageError: another process took the lease over, or the record cannot be written.
        """
        place = f"{record.stage}/{record.key[:DIGITS]}"
        values = _translated(json.loads(record.to_json()), str(self._root), self._bucket.address.url())
        values["run"] = run
        with self._lock:
            lease.check(is_patient=True)
            body = (json.dumps(values, indent=2) + "\n").encode()
            try:
                etag = self._bucket.put(_object(place), body, ABSENT)
            except ConflictError as error:
                raise ConflictError(
                    f"another run finished the stage {record.stage}/{record.path.name} meanwhile",
                    "run the same command again: it uses that run's result",
                ) from error
            record.save()
            self._write({**self._read(), place: [etag, f"{record.stage}/{record.path.name}", run]})
            self._committed[place] = ReadObject(body, etag, True)
            if len(self._committed) >= _MANY:
                with suppress(StorageError):
                    self._pack({**self._packed(), **self._committed})
                self._committed.clear()

    def _packed(self) -> dict[str, ReadObject]:
        """Reads the records in the pack, keyed by kind and key of the stage. The bucket may have newer records."""
        read = self._bucket.get(_PACK)
        if read is None or not read.is_intact:
            return {}
        try:
            known = json.loads(gzip.decompress(read.body))
            return {place: ReadObject(str(body).encode(), str(etag), True) for place, (etag, body) in known.items()}
        except (OSError, EOFError, ValueError, TypeError, AttributeError, zlib.error):
            return {}

    def _pack(self, records: Mapping[str, ReadObject]) -> None:
        """Writes the pack. If this fails, other machines read the records one by one."""
        text = json.dumps({place: [record.etag, record.body.decode()] for place, record in records.items()})
        with suppress(StorageError):
            self._bucket.hasty(_PATIENCE_S).put(_PACK, gzip.compress(text.encode(), 1), None)

    def _copy(self, place: str, read: ReadObject | None, is_written: bool = True) -> list[str] | None:
        """Copies a record to this machine, or into memory. Returns its ETag, folder and run.

        Returns None if there is no usable record.
        """
        self._faults.pop(place, None)
        if read is None:
            return None
        try:
            if not read.is_intact:
                raise ValueError("its content does not have the digest that was stored with it")
            values = _translated(json.loads(read.body), self._bucket.address.url(), str(self._root))
            kind, _, digits = place.partition("/")
            folder = f"{kind}/{values['name']}-{digits}"
            if values["stage"] != kind or values["key"][:DIGITS] != digits:
                raise ValueError("it is the record of another stage")
            run = str(values.pop("run"))
            if "/" in run or not all(map(is_inside, [folder, run, *values["outputs"], *values["digests"]])):
                raise ValueError("it names files outside of its folder")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            url = self._bucket.address.url(_object(place))
            self._faults[place] = f"the record {url} was changed by a program other than dontstop: {error}"
            return None
        text = json.dumps(values, indent=2) + "\n"
        if is_written or (self._root / folder).exists():  # files of an interrupted run must not stay beside a record
            self._unwritten.pop(self._root / folder, None)
            _save(self._root / folder / RECORD_FILE, text)
        else:
            self._unwritten[self._root / folder] = text
        return [read.etag, folder, run]

    def _has(self, entry: list[str] | None, etag: str) -> bool:
        if entry is None or entry[0] != etag:
            return False
        if self._root / entry[1] in self._unwritten:
            return True
        try:
            size = (self._root / entry[1] / RECORD_FILE).stat().st_size
        except OSError:
            return False
        return size > 0  # a crash of the machine can leave an empty file, because copies are not flushed to disk

    def _read(self) -> dict[str, list[str]]:
        try:
            index = json.loads(self._file.read_text())
            return {str(place): [str(etag), str(folder), str(run)] for place, (etag, folder, run) in index.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, index: dict[str, list[str]]) -> None:
        if index != self._known or not self._file.exists():
            with storage_errors(self._root):
                make_folder(self._root)
            write_shared(self._file, json.dumps(index))
            self._known = index


def _object(place: str) -> str:
    return f"{_RECORDS}/{place}.json"


def _save(file: Path, text: str) -> None:
    if not file.exists() or file.read_text() != text:
        clear(file.parent)  # another machine finished the stage, so files of an interrupted run are useless
        with file_aside(file) as aside:  # not flushed to disk, which takes more time than all else; see `_has`
            aside.write_text(text)


def _translated(values: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Replaces the prefix `old` of paths with `new`, in the inputs and the result of a record."""

    def change(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(f"{old}/"):
            return new + value[len(old) :]
        if isinstance(value, dict):
            return {name: change(inner) for name, inner in value.items()}
        return [change(inner) for inner in value] if isinstance(value, list) else value

    return {**values, **{name: change(values[name]) for name in ("inputs", "metrics")}}


def is_inside(name: str) -> bool:
    """Returns whether a path is relative and stays inside its folder."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


_held: dict[Path, ExitStack] = {}
"""Shared locks of the folders that must stay on this machine until this process ends."""


@contextmanager
def using(folders: Iterable[Path]) -> Iterator[None]:
    """Keeps all processes on this machine from removing files in the folders of stages during the block."""
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_locked(folder, fcntl.LOCK_SH))
            os.utime(_use_file(folder))
        yield


def hold(folder: Path) -> None:
    """Keeps all processes on this machine from removing files in a stage's folder until this process ends."""
    if folder not in _held:
        _held[folder] = ExitStack()
        _held[folder].enter_context(using([folder]))


def clear(folder: Path) -> None:
    """Removes a folder of a stage with all its files, unless a process uses it."""
    if folder.is_dir():
        with suppress(BlockingIOError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(folder)


def evict(root: Path, folders: Iterable[Path], limit: float, keeping: Path) -> float:
    """Removes files of finished stages, least recently used first, until the local copy is small enough.

    Args:
        root: folder of the local copy.
        folders: folders of finished stages, from which all files except the record may be removed.
        limit: maximum size of the local copy [bytes].
        keeping: folder that is not removed.

    Returns:
        The size of the local copy afterwards [bytes].
    """
    # a killed process may have left files in the folder aside
    sizes = {folder: _bytes_in(folder) + _bytes_in(_aside(folder)) for folder in folders}
    total = _bytes_in(root)
    for folder in sorted(sizes, key=_last_use):
        if total <= limit:
            break
        if folder == keeping or not sizes[folder]:
            continue
        with suppress(BlockingIOError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            aside = _aside(folder)
            shutil.rmtree(aside, ignore_errors=True)
            if _bytes_in(folder):
                folder.rename(aside)
                folder.mkdir()
                (aside / RECORD_FILE).rename(folder / RECORD_FILE)
                shutil.rmtree(aside)
            total -= sizes[folder]
    return total


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{ASIDE}")


def _bytes_in(folder: Path) -> int:
    """Returns the size of the files in a folder except records [bytes]."""
    size = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # raised for a file that was removed meanwhile
            size += file.stat().st_size if file.name != RECORD_FILE and file.is_file() else 0
    return size


def _use_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.use"


def _last_use(folder: Path) -> float:
    try:
        return _use_file(folder).stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    make_folder(folder.parent)
    with _use_file(folder).open("a") as opened:
        fcntl.flock(opened, operation)
        yield
