"""Manages the local copy of a bucket. Stages work on the local copy, but only files in the bucket are results.

The objects below `s3://BUCKET/PREFIX` are:

- `records/KIND/KEY.json`: the record of a finished stage (`adapt.runner.bucket_records`).
- `packs/records`: copies of many records, which a new machine reads in one request.
- `leases/KIND/KEY.json`: the lease of a stage (`adapt.runner.lock`).
- `KIND/NAME-KEY/RUN/...`: the files of a stage. `adapt.runner.claim` writes them while the stage runs. Each run of
  the stage has a separate folder. The record names the valid folder; if there is no record, the lease names it.
- `logs/KIND/NAME-KEY.jsonl` and `reports/...`: as in a storage root that is a folder.

The local copy is the folder `CACHE/dontstop-buckets/HOST/BUCKET+PREFIX`, so any path in it names its bucket.
`Mirror.bring` copies the files of a finished stage and checks their digests. `adapt.runner.bucket_records` removes
files when the copy is larger than `storage.cache_gb`.
"""

import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from adapt.runner.bucket import S3Bucket
from adapt.runner.bucket_errors import Address, ConflictError
from adapt.runner.bucket_records import FRESH_S, BucketRecords, evict, hold, is_inside, using
from adapt.runner.digest import check_content, named_faults, sha256_of
from adapt.runner.files import file_aside, folder_aside, make_folder
from adapt.runner.lock import CopyState, free_text, is_abandoned, is_begun, is_held, is_held_by, locked, progress_in
from adapt.runner.record import Record, load_record
from adapt.support.errors import ConfigError, StageError, StorageError
from adapt.support.paths import user_path
from adapt.support.redact import redact
from adapt.terminal.console import log, say_once

FOLDER = "dontstop-buckets"
"""Name of the folder with all local copies of buckets."""
_LEASES = "leases"
_THREADS = 8
_SAID_BYTES = 2**30
"""Copies from the bucket are logged if they have at least this size [bytes]."""
_SHARE = 0.8
"""Share of the file system that the local copy may fill if `storage.cache_gb` is not set."""
_SLACK = 0.01
"""Amount of copied data, as a share of the limit, after which the size of the local copy is measured again."""
TEXTS = (".json", ".jsonl", ".md", ".txt", ".csv", ".html", ".svg")
_LARGEST_TEXT = 64 * 2**20
"""Maximum size of a text file that is copied from the bucket to display results [bytes]."""


def mirror_folder(url: str, cache_folder: str, cache_gb: float | None = None) -> Path:
    """Returns the folder of the local copy of a storage root `s3://BUCKET/PREFIX`.

    Args:
        url: the storage root.
        cache_folder: folder for all local copies.
        cache_gb: maximum size of the local copy [GB]. None for 80% of the disk. The limit applies until this process
            ends.

    Raises:
        ConfigError: the URL, or the store's URL in the environment, cannot be used.
    """
    address = Address.of(url)
    url_of_store = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    endpoint = urlsplit(url_of_store).netloc
    if url_of_store and not (endpoint and url_of_store.startswith(("http://", "https://"))):
        raise ConfigError(
            f"the environment variable AWS_ENDPOINT_URL_S3 (or AWS_ENDPOINT_URL) is not a URL: {redact(url_of_store)}",
            "write it with its scheme, for example http://localhost:9000",
        )
    place = "+".join((address.bucket, *filter(None, address.prefix.split("/"))))
    host = endpoint.rpartition("@")[2].replace(":", "-") or "aws"
    folder = user_path(cache_folder).absolute() / FOLDER / host / place
    mirror = _mirror(folder, os.getpid())
    mirror.cache_gb = cache_gb
    _in_use[folder] = mirror
    return folder


_in_use: dict[Path, "Mirror"] = {}
"""The local copies of buckets that are storage roots of this process, keyed by folder."""


def mirrors_in_use() -> list["Mirror"]:
    """Returns the local copies of all buckets that are storage roots of this process."""
    return list(_in_use.values())


def mirror_at(path: Path) -> "Mirror | None":
    """Returns the local copy that contains a path. Returns None for paths outside of local copies of buckets."""
    if FOLDER not in path.parts:
        return None
    end = len(path.parts) - path.parts[::-1].index(FOLDER) + 2
    return _mirror(Path(*path.parts[:end]), os.getpid()) if len(path.parts) >= end else None


@cache
def _mirror(root: Path, process: int) -> "Mirror":
    bucket, *prefix = root.name.split("+")
    return Mirror(root, S3Bucket(Address(bucket, "/".join(prefix))))


def at_hand(folder: Path) -> Path:
    """Copies files of a finished stage from the bucket if this machine lacks them, and returns the folder.

    The files stay on this machine until the process ends. Does nothing for folders outside of local copies.

    Raises:
        StageError: files are missing in the bucket, or have changed.
    """
    if (mirror := mirror_at(folder)) and (record := load_record(folder)):
        hold(folder)
        mirror.bring_checked(record)
    return folder


def upload_results(*files: Path) -> None:
    """Uploads files or whole folders that belong to no stage, such as reports. Does nothing outside of local copies."""
    for file in files:
        if mirror := mirror_at(file):
            for each in (each for each in file.rglob("*") if each.is_file()) if file.is_dir() else (file,):
                mirror.bucket.upload(each.relative_to(mirror.root).as_posix(), each, None)


def fetch_spare(folder: Path, *parts: str) -> None:
    """Copies files that the record of a stage does not list, such as checkpoints, if this machine lacks them.

    Does nothing if the folder is not in the local copy of a bucket.
    """
    if mirror := mirror_at(folder):
        for part in parts:
            begin = f"{mirror.objects_of(folder)}{part}/"
            if not (folder / part).is_dir() and (names := mirror.bucket.objects(begin)):
                with folder_aside(folder / part) as aside:  # an incomplete copy must not look complete
                    mirror.copy_all(names, begin, aside)


class Mirror:
    """The local copy of a storage root that is a bucket."""

    def __init__(self, root: Path, bucket: S3Bucket) -> None:
        self.root, self.bucket, self.records = root, bucket, BucketRecords(root, bucket)
        self.cache_gb: float | None = None
        """Maximum size of the local copy [GB]. Above it, files of finished stages are removed. None for 80% of the
        disk."""
        self._lock = threading.RLock()
        self._leases: tuple[float, set[str]] = (-FRESH_S, set())
        """Time at which the leases were last listed, and the names of the held leases."""
        self._brought = math.inf
        """Amount of data that was copied since the size of the local copy was last measured [bytes]."""
        self._is_checked = self._is_clean = False

    @property
    def id(self) -> str:
        """Id of this local copy on this machine. A copy of the folder on another machine has a different id."""
        return sha256(f"{self.mark} {socket.gethostname()}".encode()).hexdigest()[:32]

    @property
    def mark(self) -> str:
        """Text that identifies the local copy's folder. All machines that mount the same folder see the same text."""
        file = self.root / ".mirror"
        if not file.exists():
            make_folder(self.root)
            aside = file.with_name(f".mirror-{uuid4().hex}")
            aside.write_text(uuid4().hex)
            try:
                os.link(aside, file)
            except FileExistsError:  # another process has created the file
                pass
            except OSError:  # raised by a file system without links
                aside.replace(file)
            aside.unlink(missing_ok=True)
        return file.read_text()

    def check_store(self) -> None:
        """Checks once per process that the bucket can be written, and that its store supports conditional writes."""
        with self._lock:
            if not self._is_checked:
                self.bucket.check()
                self._is_checked = True

    def clean_up(self) -> None:
        """Deletes files of interrupted runs of finished stages, if a process was killed before it deleted them.

        Such a process has not released its lease. Does nothing if it was called before in this process.
        """
        with self._lock:
            if self._is_clean:
                return
            self._is_clean = True
        try:
            for name, listed in self.bucket.objects(f"{_LEASES}/").items():
                kind, _, digits = name.removeprefix(f"{_LEASES}/").removesuffix(".json").partition("/")
                if is_abandoned(listed) and (folder := self.records.folder(kind, digits)):
                    self.clean_runs(folder)
                    with suppress(ConflictError):  # another process holds the lease now
                        self.bucket.put(name, free_text(progress_in(self.bucket.get(name))), listed.etag)
        except (StageError, StorageError) as error:
            log(f"warning: files of interrupted runs may remain in {self.bucket.address.url()}: {error.what}")

    def clean_runs(self, folder: Path) -> None:
        """Deletes the files of all runs of a finished stage except the run that its record names."""
        begin = f"{folder.relative_to(self.root).as_posix()}/"
        valid = self.records.run(folder.parent.name, _digits(folder))
        if valid:
            names = self.bucket.objects(begin)
            self.bucket.delete(name for name in names if not name.startswith(f"{begin}{valid}/"))

    def url(self, path: Path) -> str:
        """Returns the URL of the objects that belong to a file or folder of the local copy."""
        return self.bucket.address.url(path.relative_to(self.root).as_posix())

    def objects_of(self, folder: Path) -> str:
        """Returns the prefix that the names of a stage's objects have, with a slash at the end."""
        run = self.records.run(folder.parent.name, _digits(folder))
        run = run or progress_in(self.bucket.get(self.lease_name(folder))).run
        return f"{folder.relative_to(self.root).as_posix()}/{run or '-'}/"

    def check(self, record: Record) -> None:
        """Checks that the files of a finished stage are in the bucket and have the sizes in its record."""
        begin = self.objects_of(record.path)
        there = {name.removeprefix(begin): of.size for name, of in self.bucket.objects(begin).items()}
        self._refuse(
            record,
            [
                f"{name} has {there[name]} of {size} bytes" if name in there else f"{name} is missing"
                for name, size in record.outputs.items()
                if there.get(name) != size
            ],
        )

    def bring(self, record: Record, is_wanted: Callable[[str, int], bool] = lambda name, size: True) -> None:
        """Copies the files of a finished stage that this machine lacks, and checks their digests.

        If several processes of this machine need the same files, one of them copies them.

        Args:
            record: record of the stage.
            is_wanted: function that selects files by their name and size [bytes].

        Raises:
            StageError: files are missing in the bucket, or have other content than the stage wrote.
            StorageError: the bucket cannot be read, or the disk is full.
        """

        def needed() -> list[str]:
            wanted = ((name, size) for name, size in record.outputs.items() if is_wanted(name, size))
            return [name for name, size in wanted if _size(record.path / name) != size]

        if needed():
            with locked(record.path.with_name(f"{record.path.name}.copy"), lambda holder: None):
                self._bring(record, needed())

    def _bring(self, record: Record, needed: list[str]) -> None:
        """Copies files of a finished stage, and checks their digests."""
        if not needed:
            return
        size = sum(record.outputs[name] for name in needed)
        if size > _SAID_BYTES:
            log(f"copying {size / 1e9:.1f} GB from {self.url(record.path)}")

        begin = self.objects_of(record.path)

        def fault_of(name: str) -> str | None:
            """Copies a file. Returns how the copy differs from the file that the stage wrote; None if it does not."""
            target = record.path / name
            try:
                with file_aside(target) as aside:
                    if not self.bucket.download(begin + name, aside):
                        raise _FaultError(f"{name} is missing")
                    if (digest := record.digests.get(name)) and sha256_of(aside) != digest:
                        raise _FaultError(f"{name} has other content")
            except _FaultError as error:
                return str(error)
            return None

        self.records.write(record.path)
        with using([record.path]), ThreadPoolExecutor(_THREADS) as threads:
            self._refuse(record, [fault for fault in threads.map(fault_of, needed) if fault])
            if not (record.path / "README.md").exists():  # the record omits the model card, because people may edit it
                self.copy(record.path / "README.md", begin + "README.md")
        self.has_grown(record)

    def bring_checked(self, record: Record) -> None:
        """Copies the files of a finished stage that this machine lacks or has with different content.

        Existing files are read once per process.
        """
        self.bring(record)
        try:
            check_content(record)
        except StageError:
            self.mend(record)

    def mend(self, record: Record) -> None:
        """Copies files of a finished stage again if their content differs from the record."""
        for name, digest in record.digests.items():
            file = record.path / name
            with suppress(FileNotFoundError):
                if sha256_of(file) != digest:
                    log(
                        f"the content of {file} does not match the digest in the record; copying the file again from"
                        f" {self.url(file)}"
                    )
                    file.unlink()
        self.bring(record)

    def _refuse(self, record: Record, faults: list[str]) -> None:
        if faults:
            raise StageError(
                f"the stage in {self.url(record.path)} is finished, but its files have changed: {named_faults(faults)}",
                "restore the files (a bucket with versioning keeps their earlier versions), or delete"
                f" {self.records.url(record)} to run the stage again",
            )

    def has_grown(self, record: Record) -> None:
        """Removes old files if files of a stage were added and made the local copy too large."""
        limit = self.cache_gb * 1e9 if self.cache_gb is not None else _SHARE * shutil.disk_usage(self.root).total
        self._brought += sum(record.outputs.values())
        if self._brought >= _SLACK * limit:  # the size is measured only sometimes, because measuring visits all files
            self._brought = 0.0
            size = evict(self.root, self.records.folders("*"), limit, record.path)
            if size > limit:
                say_once(
                    f"warning: {self.root} is larger than storage.cache_gb {limit / 1e9:.3g}, because stages that run"
                    " or were interrupted need its files"
                )

    def copy(self, file: Path, name: str | None = None) -> None:
        """Copies an object to a file, if the object exists. `name` is the object's name; by default the file's path."""
        with suppress(_FaultError), file_aside(file) as aside:
            if not self.bucket.download(name or file.relative_to(self.root).as_posix(), aside):
                raise _FaultError(f"{file.name} is missing")

    def copy_all(self, names: Iterable[str], begin: str, folder: Path) -> None:
        """Copies objects to a folder. Objects that were deleted meanwhile are left out.

        Args:
            names: names of the objects, which all begin with `begin`.
            begin: prefix that is removed from the names to get the paths in the folder.
            folder: the folder.

        Raises:
            StorageError: a name leads out of the local copy, or `S3Bucket.download` failed.
        """
        names = list(names)
        if bad := [name for name in names if not is_inside(name.removeprefix(begin))]:
            what = f"{self.bucket.address.url(bad[0])} is not an object that dontstop wrote"
            raise StorageError(what, "delete the object")
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(lambda name: self.copy(folder / name.removeprefix(begin), name), names):
                pass

    def begun(self, folder: Path) -> Path:
        """Returns the folder in which any machine has begun a stage, or else `folder`.

        Reads the stage's lease, which names the run that has begun. Lists the folders of the stage's kind only if the
        stage was begun under another name, because a kind may have thousands of folders.
        """
        kind, ending = folder.parent.name, f"-{_digits(folder)}"
        if not is_begun(self.bucket.get(self.lease_name(folder))):
            return folder
        if self.bucket.folders(f"{kind}/{folder.name}/"):
            return folder
        names = (name for name in self.bucket.folders(f"{kind}/") if name.endswith(ending))
        return folder.with_name(next(names, folder.name))

    def newest_run(self, folder: Path) -> CopyState:
        """Returns the run that uploaded the newest file of a stage, for the case that the stage's lease is damaged."""
        begin = f"{folder.relative_to(self.root).as_posix()}/"
        ages: dict[str, float] = {}
        for name, listed in self.bucket.objects(begin).items():
            run = name.removeprefix(begin).partition("/")[0]
            ages[run] = min(listed.age_s, ages.get(run, math.inf))
        run = min(ages, key=lambda each: ages[each], default="")
        return CopyState("unknown", run, run) if run else CopyState()  # no local copy has this id

    def lease_name(self, folder: Path) -> str:
        """Returns the name of the lease of the stage in a folder."""
        return f"{_LEASES}/{folder.parent.name}/{_digits(folder)}.json"

    @staticmethod
    def lock_name(folder: Path) -> Path:
        """Returns the path of the local lock that a process must hold to work on a stage or to take its lease.

        Lock and lease are named after the stage's key, because the same stage may have two names.
        """
        return folder.with_name(_digits(folder))

    def is_held(self, folder: Path) -> bool:
        """Returns whether any process holds the lease of the stage in a folder. The answer is up to 10 s old."""
        with self._lock:
            if time.monotonic() - self._leases[0] >= FRESH_S:
                listed = self.bucket.objects(f"{_LEASES}/")
                self._leases = (time.monotonic(), {name for name, of in listed.items() if is_held_by(of)})
            return self.lease_name(folder) in self._leases[1]

    def follow(self, folder: Path, record: Record | None) -> None:
        """Copies the log and small text files of a stage, to display them, unless the stage runs on this machine.

        Args:
            folder: folder of the stage.
            record: record of the stage; None if the stage is not finished.
        """
        log_name = f"logs/{folder.parent.name}/{folder.name}.jsonl"
        if record:
            try:
                self.bring(record, lambda name, size: name.endswith(TEXTS) and size <= _LARGEST_TEXT)
            except StageError as error:  # other files can still be displayed; stages that need this file raise an error
                say_once(f"warning: {error.what}")
            if not (self.root / log_name).exists():
                self.copy(self.root / log_name)
        elif not is_held(self.lock_name(folder)) and self.is_held(folder):
            begin = self.objects_of(folder)
            small = [
                name
                for name, of in self.bucket.objects(begin, is_flat=True).items()
                if name.endswith(TEXTS) and of.size <= _LARGEST_TEXT
            ]
            self.copy_all(small, begin, folder)
            self.copy(self.root / log_name)


def _digits(folder: Path) -> str:
    """Returns the digits of the stage's key, which the name of a stage's folder contains."""
    return folder.name.rsplit("-", 1)[-1]


class _FaultError(Exception):
    """A file in the bucket differs from the file that the stage wrote."""


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None
