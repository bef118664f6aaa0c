"""Gives one process the right to work on a stage's folder, and commits the stage's record.

If the storage root is a folder, the right is a lock of the file system. If the storage root is a bucket, the right is a
lease, and the files are uploaded while the stage runs. New and changed files are uploaded every few seconds, so
checkpoints, logs and metrics are in the bucket long before the stage ends. Files that the stage deletes are deleted
from the bucket after all newer files were uploaded. So a new checkpoint is complete before the previous one is deleted.

Each run writes its objects to a separate folder, `KIND/NAME-KEY/RUN/`, and the record names the valid folder. So a run
that lost its lease can neither replace nor delete the objects of the run that took over. The new run copies the files
of the previous run, and uploads all of them to its own folder. Then the lease names this folder as the newest complete
folder. The other folders are deleted after the record was created.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from uuid import uuid4

from adapt.runner import bucket, bucket_errors, bucket_records, digest, folder_copy
from adapt.runner.files import folder_aside
from adapt.runner.lock import CopyState, Lease, is_held, leased, locked
from adapt.runner.mirror import Mirror, mirror_at
from adapt.runner.record import RECORD_FILE, Record
from adapt.support.errors import StorageError
from adapt.support.schema import END_FILE
from adapt.terminal.console import log

_PAUSE_S = 3.0
"""Minimum time between two passes over the stage's files [s]."""
_SHARE = 0.1
"""Maximum share of the stage's time that passes may take. A pass looks for changed files, uploads them and deletes
objects."""
_SMALL = 2**20
"""Maximum size of a file that is uploaded while it still changes [bytes]. Larger files must first stay unchanged."""
_GRACE_S = 30.0
"""Maximum wait for the store after the stage has failed [s]."""
_THREADS = 8
_STATE_FILE = ".uploads.json"
"""File in the stage's folder with the ETag of each uploaded file, and its stamp (size, times and inode)."""
_RUN_DIGITS = 12


class Uploads:
    """Uploads a stage's folder and its log to the bucket."""

    def __init__(self, mirror: Mirror, folder: Path, lease: Lease) -> None:
        self._mirror, self._folder, self._lease, self._bucket = mirror, folder, lease, mirror.bucket
        self._name = folder.relative_to(mirror.root).as_posix()
        self._log = mirror.root / "logs" / folder.parent.name / f"{folder.name}.jsonl"
        self.run = ""
        """Name of this run, and of the folder in the bucket to which the run uploads. Empty before `begin`."""
        self._etags: dict[str, str] = {}
        """ETag that this run last saw for each object, keyed by path in the stage's folder."""
        self._sent: dict[str, str] = {}
        """Stamp (size, times and inode) of each file when it was uploaded, keyed by path in the stage's folder."""
        self._seen: dict[str, str] = {}
        """Stamps of large files in the previous pass."""
        self._missing: set[str] = set()
        """Uploaded files that were missing from the folder in the previous pass."""
        self._awaited: set[str] | None = set()
        """Files of the previous run that this run must still upload. None if this run has uploaded all files."""
        self._log_stamp = ""
        self._passing = threading.Lock()
        self._is_over = False

    def begin(self) -> None:
        """Restores the stage's folder to the state in which the last run left it.

        If that run used another local copy of the bucket, the files are copied from the bucket. Otherwise, the local
        files are newer, and stay unchanged.
        """
        last = self._lease.progress
        if last.run:
            self._bucket.abort_uploads(f"{self._name}/")  # large files whose upload was interrupted by a kill
        if last.mirror in ("", self._mirror.id) and self._folder.is_dir():
            if last.run and self._lease.is_restart:  # continues the last run, which has ended, under the same name
                self.run = last.run
                listed = self._bucket.objects(self._object(""))
                self._etags = {name.removeprefix(self._object("")): of.etag for name, of in listed.items()}
                known = self._read_state()
                self._sent = {name: stamp for name, (stamp, etag) in known.items() if self._etags.get(name) == etag}
        else:
            self._copy(last.whole)
        self.run = self.run or uuid4().hex[:_RUN_DIGITS]
        self._awaited = set(self._stamps()) - self._sent.keys()
        is_whole = last.whole in ("", self.run) or not self._awaited
        if is_whole:
            self._awaited = None
        self._lease.note(CopyState(self._mirror.id, self.run if is_whole else last.whole, self.run), is_patient=True)

    def _copy(self, run: str) -> None:
        """Replaces the folder with the files of a run, all at once."""
        begin = f"{self._name}/{run}/"
        listed = self._bucket.objects(begin) if run else {}
        if listed:
            size = sum(of.size for of in listed.values())
            log(f"continuing {self._name} from {self._bucket.address.url()}: copying {size / 1e9:.2f} GB")
        with folder_aside(self._folder) as aside:  # an incomplete copy must not look complete
            self._mirror.copy_all(listed, begin, aside)
        if run:
            self._mirror.copy(self._log)

    def _object(self, name: str) -> str:
        return f"{self._name}/{self.run}/{name}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Uploads files in the background while the block runs, and once more if the block raises an error."""
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        except Exception:
            ended.set()
            thread.join(_GRACE_S)
            self._bucket = self._bucket.hasty(_GRACE_S)
            with suppress(StorageError, OSError):  # the error of the stage is more important than errors of uploads
                self.send(is_growing=False, longest_wait_s=_GRACE_S)
            raise
        finally:
            ended.set()
            thread.join(_GRACE_S)

    def _watch(self, ended: threading.Event) -> None:
        pause, is_said = _PAUSE_S, False
        while not ended.wait(pause):
            start, failure = time.monotonic(), None
            try:
                self.send(is_growing=True)
            except Exception as error:  # the next pass tries again, and `commit` raises the error if it persists
                failure = error
            if self._lease.is_lost:
                with suppress(OSError):
                    (self._folder / END_FILE).touch()  # ends the stage, because another run took over
                return
            if failure is None:
                is_said = False
            elif not is_said and not isinstance(failure, OSError):
                what = failure.what if isinstance(failure, StorageError) else failure
                log(f"warning: {what}; the upload will be tried again")
                is_said = True
            pause = max(_PAUSE_S, (time.monotonic() - start) * (1 / _SHARE - 1))

    def send(self, is_growing: bool, longest_wait_s: float = -1) -> None:
        """Uploads all files that are new or have changed, and deletes the objects of files that were deleted.

        Args:
            is_growing: whether files may still be written. A large file is then uploaded only if it has not changed
                since the previous pass.
            longest_wait_s: maximum wait for the end of a pass in another thread [s]; -1 for no limit.

        Raises:
            StorageError: an object cannot be written, or another process has taken the lease over.
            OSError: a file cannot be read.
        """
        if self._passing.acquire(timeout=longest_wait_s):
            try:
                if not self._is_over:
                    self._pass(is_growing, is_patient=not is_growing and longest_wait_s < 0)
            finally:
                self._passing.release()

    def _stamps(self) -> dict[str, str]:
        """Returns the stamps of all files that must be uploaded, keyed by path in the stage's folder."""
        stamps = {}
        for file in self._folder.rglob("*"):
            inner = file.relative_to(self._folder)
            if str(inner) != RECORD_FILE and not any(part.startswith(".") for part in inner.parts) and file.is_file():
                with suppress(FileNotFoundError):
                    stamps[inner.as_posix()] = _stamp(file)
        return stamps

    def _pass(self, is_growing: bool, is_patient: bool) -> None:
        stamps = self._stamps()
        changed = [name for name, stamp in stamps.items() if self._sent.get(name) != stamp]
        if is_growing:
            seen, self._seen = self._seen, {name: stamps[name] for name in changed}
            ready = [name for name in changed if self._is_ready(name, stamps[name], seen.get(name))]
        else:
            ready = changed
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(lambda name: self._send(name, stamps[name], is_growing, is_patient), ready):
                pass
        before, self._missing = self._missing, self._sent.keys() - stamps.keys()
        if len(ready) == len(changed):
            if self._awaited is not None:
                self._lease.note(CopyState(self._mirror.id, self.run, self.run), is_patient)
                self._awaited = None
            # a file counts as deleted if two passes miss it, because a list may miss a file that is being renamed
            gone = self._missing & before if is_growing else self._missing
            self._bucket.delete(map(self._object, gone))
            for name in gone:
                del self._sent[name]
                self._etags.pop(name, None)
        if ready:
            self._write_state()
        self.send_log(is_patient)

    def _is_ready(self, name: str, stamp: str, seen: str | None) -> bool:
        return seen == stamp or int(stamp.partition(":")[0]) <= _SMALL or name in (self._awaited or ())

    def _send(self, name: str, stamp: str, is_growing: bool, is_patient: bool) -> None:
        file, target = self._folder / name, self._object(name)
        try:
            self._etags[name] = self._bucket.upload(target, file, self._etags.get(name, bucket.ABSENT))
        except FileNotFoundError:
            if not is_growing:
                raise
            return  # the stage deleted the file after it was listed
        except bucket_errors.ConflictError:
            self._lease.check(is_patient)  # only the holder of the lease may replace an object that it did not write
            there = self._bucket.objects(target).get(target)
            self._etags[name] = self._bucket.upload(target, file, there.etag if there else bucket.ABSENT)
        self._sent[name] = stamp

    def discard(self) -> None:
        """Deletes the objects of this run, because another run finished the stage, and stops all uploads."""
        with self._passing:
            self._is_over = True
            with suppress(StorageError):  # an error is ignored, because objects that are not deleted do no harm
                self._bucket.delete(self._bucket.objects(self._object("")))

    def send_log(self, is_patient: bool = False) -> None:
        """Uploads the log of the stage if it has changed. See `Lease.check`."""
        with suppress(OSError):  # the log may be missing
            if (stamp := _stamp(self._log)) != self._log_stamp:
                self._lease.check(is_patient)  # all runs write the log to the same object, so the lease must be valid
                self._bucket.upload(self._log.relative_to(self._mirror.root).as_posix(), self._log, None)
                self._log_stamp = stamp

    def clean(self, record: Record) -> None:
        """Deletes the stage's objects that are not in its folder: files of interrupted runs, and old checkpoints.

        Args:
            record: the record that this run has committed. The files that the record lists are not deleted.
        """
        listed = {self._object(name) for name in record.outputs}
        begin = self._object("")
        self._lease.check(is_patient=True)  # if another run has taken over the lease, its objects must stay
        names = self._bucket.objects(f"{self._name}/").keys() - listed
        self._bucket.delete(
            name
            for name in names
            if not (name.startswith(begin) and (self._folder / name.removeprefix(begin)).exists())
        )
        (self._folder / _STATE_FILE).unlink(missing_ok=True)
        self.send_log(is_patient=True)

    def _read_state(self) -> dict[str, tuple[str, str]]:
        try:
            known = json.loads((self._folder / _STATE_FILE).read_text())
            return {str(name): (str(stamp), str(etag)) for name, (stamp, etag) in known.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write_state(self) -> None:
        state = {name: (stamp, self._etags[name]) for name, stamp in self._sent.items() if name in self._etags}
        with suppress(OSError):  # an error is ignored: without this file, a later run uploads all files again
            aside = self._folder / f"{_STATE_FILE}.aside"
            aside.write_text(json.dumps(state))
            aside.replace(self._folder / _STATE_FILE)


def _stamp(file: Path) -> str:
    return digest.stamp_of(file.stat())


_at_work: ContextVar[Path | None] = ContextVar("folder of the stage", default=None)


def stage_at_work() -> Path | None:
    """Returns the folder of the stage that this thread works on, if its storage root is a bucket. Otherwise None."""
    return _at_work.get()


class Claim:
    """The right to work on a stage's folder. If the root is a folder, the stage writes its files directly there."""

    def __init__(self, place: Path | str) -> None:
        self.place = str(place)
        """Path or URL of the folder, for messages."""

    def begin(self, inputs: Iterable[Record], outside: Iterable[Path] = ()) -> AbstractContextManager[None]:
        """Copies the files of an interrupted run and of the inputs to this machine, where they stay during the block.

        Args:
            inputs: records of the inputs.
            outside: files and folders outside of the storage root that the stage reads.

        Raises:
            StageError: a file of an input is missing or has changed.
            StorageError: the files cannot be copied.
        """
        return nullcontext()

    def running(self) -> AbstractContextManager[None]:
        """Stores the files of the stage while the block runs."""
        return nullcontext()

    def commit(self, record: Record) -> None:
        """Stores all files and then the record, which makes the stage finished.

        Raises:
            StorageError: the files or the record cannot be written, or another process finished the stage.
        """
        record.save()

    def clean(self, record: Record) -> None:
        """Removes stored files that are neither in the committed record nor in the folder."""

    def clean_runs(self, record: Record) -> None:
        """Removes stored files of interrupted runs of a stage that another process has finished."""


class BucketClaim(Claim):
    """A claim in a storage root that is a bucket."""

    def __init__(self, mirror: Mirror, folder: Path, lease: Lease) -> None:
        super().__init__(mirror.url(folder))
        self._mirror, self._folder, self._lease = mirror, folder, lease
        self._uploads = Uploads(mirror, folder, lease)

    @contextmanager
    def begin(self, inputs: Iterable[Record], outside: Iterable[Path] = ()) -> Iterator[None]:
        """Copies the files of an interrupted run and of the inputs from the bucket. See `Claim.begin`."""
        inputs = list(inputs)
        folders = [record.path for record in inputs]
        with bucket_records.using([self._folder, *folders]):
            self._uploads.begin()
            for record in inputs:
                self._mirror.bring_checked(record)
            with folder_copy.announced(self._folder, folders, outside, self._mirror.cache_gb):
                before = _at_work.set(self._folder)
                try:
                    yield
                finally:
                    _at_work.reset(before)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Uploads files in the background. If the block fails after the lease was lost, the error names the lost lease.

        Raises:
            StorageError: another process has taken the lease over.
        """
        try:
            with self._uploads.running():
                yield
        except Exception:
            if self._lease.is_lost:
                self._lease.check()
            raise

    def commit(self, record: Record) -> None:
        """Uploads the remaining files, and creates the record. See `Claim.commit`."""
        self._uploads.send(is_growing=False)
        try:
            self._mirror.records.commit(record, self._lease, self._uploads.run)
        except bucket_errors.ConflictError:
            self._uploads.discard()
            raise

    def clean(self, record: Record) -> None:
        """Deletes the files of interrupted runs from the bucket. If this fails, the files remain and do no harm."""
        try:
            self._uploads.clean(record)
        except StorageError as error:
            log(f"warning: files of interrupted runs remain in {self.place}: {error.what}")
        self._mirror.has_grown(record)

    def clean_runs(self, record: Record) -> None:
        """Deletes the files of interrupted runs. See `Claim.clean_runs`."""
        try:
            self._mirror.clean_runs(record.path)
        except StorageError as error:
            log(f"warning: files of interrupted runs remain in {self.place}: {error.what}")


def is_claimed(folder: Path) -> bool:
    """Returns whether a process works on a stage's folder now, for a bucket also on other machines."""
    mirror = mirror_at(folder)
    return is_held(folder) if mirror is None else is_held(mirror.lock_name(folder)) or mirror.is_held(folder)


@contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Holds the claim to a stage's folder inside the block. Waits while another process holds it.

    If the root is a folder, two locks are held. Processes that run the same stage under different names have different
    folders before the first of them creates its folder, so they must share the lock that is named after the stage's
    key. Other versions of dontstop and displays of progress only use the lock that is named after the folder.
    """
    mirror = mirror_at(folder)
    if mirror is None:

        def say(holder: str) -> None:
            log(f"waiting for {folder.name}: another run works on it under another name ({holder})")

        with locked(folder), locked(Mirror.lock_name(folder), say):
            yield Claim(folder)
        return
    with locked(mirror.lock_name(folder)):
        name, newest = mirror.lease_name(folder), partial(mirror.newest_run, folder)
        with leased(mirror.bucket, name, mirror.id, newest=newest) as lease:
            try:
                yield BucketClaim(mirror, folder, lease)
            finally:
                if lease.is_lost:  # the valid files are now those that the other run writes to the bucket
                    bucket_records.clear(folder)
