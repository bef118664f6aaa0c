"""The right to work on a stage's folder, and the commit of its record, in a folder or on a bucket.

In a storage root that is a folder, the right is a lock of the file system. On a bucket it is a lease, and the files are
uploaded before the record is created.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from adapt.runner.bucket_errors import ConflictError
from adapt.runner.folder_copy import announced
from adapt.runner.lease import Lease, leased
from adapt.runner.local_cache import clear, using
from adapt.runner.lock import is_held, locked
from adapt.runner.mirror import Mirror, mirror_at
from adapt.runner.record import Record
from adapt.runner.uploads import Uploads
from adapt.support.errors import StorageError
from adapt.terminal.console import log

_at_work: ContextVar[Path | None] = ContextVar("folder of the stage", default=None)


def stage_at_work() -> Path | None:
    """Returns the folder of the stage that this thread works on, if its storage root is a bucket. Otherwise None."""
    return _at_work.get()


class Claim(Protocol):
    """The right to work on a stage's folder."""

    place: str
    """Path or URL of the folder, for messages."""

    def begin(self, inputs: Iterable[Record], outside: Iterable[Path] = ()) -> AbstractContextManager[None]:
        """Copies the files of an interrupted run and of the inputs to this machine. They stay inside the block.

        Args:
            inputs: records of the inputs.
            outside: files and folders outside of the storage root that the stage reads.

        Raises:
            StageError: a file of an input is missing or has changed.
            StorageError: the files cannot be copied.
        """

    def running(self) -> AbstractContextManager[None]:
        """Stores the files of the stage while the block runs."""

    def commit(self, record: Record) -> None:
        """Stores all files and then the record, which makes the stage finished.

        Raises:
            StorageError: the files or the record cannot be written, or another process finished the stage.
        """

    def clean(self, record: Record) -> None:
        """Removes stored files that are neither in the committed record nor in the folder."""


class FolderClaim:
    """A claim in a storage root that is a folder: all files are in place already."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)

    def begin(self, inputs: Iterable[Record], outside: Iterable[Path] = ()) -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()

    def running(self) -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()

    def commit(self, record: Record) -> None:
        """Writes the record."""
        record.save()

    def clean(self, record: Record) -> None:
        """Does nothing."""


class BucketClaim:
    """A claim in a storage root that is a bucket.

    Args:
        mirror: local copy of the bucket.
        folder: folder of the stage in the local copy.
        lease: lease of the stage.
    """

    def __init__(self, mirror: Mirror, folder: Path, lease: Lease) -> None:
        self.place = mirror.url(folder)
        self._mirror, self._folder, self._lease = mirror, folder, lease
        self._uploads = Uploads(mirror, folder, lease)

    @contextmanager
    def begin(self, inputs: Iterable[Record], outside: Iterable[Path] = ()) -> Iterator[None]:
        """Copies the files of an interrupted run and of the inputs from the bucket. See `Claim.begin`."""
        inputs = list(inputs)
        folders = [record.path for record in inputs]
        with using([self._folder, *folders]):
            self._uploads.begin()
            for record in inputs:
                self._mirror.bring_checked(record)
            with announced(self._folder, folders, outside, self._mirror.cache_gb):
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
        except ConflictError:
            self._uploads.discard()
            raise

    def clean(self, record: Record) -> None:
        """Deletes the files of interrupted runs from the bucket. If this fails, the files remain and do no harm."""
        try:
            self._uploads.clean(record)
        except StorageError as error:
            log(f"warning: files of interrupted runs remain in {self.place}: {error.what}")
        self._mirror.has_grown(record)


def is_claimed(folder: Path) -> bool:
    """Returns whether a process works on a stage's folder now. If the root is a bucket, all machines are considered.

    Raises:
        StorageError: the bucket cannot be read.
    """
    mirror = mirror_at(folder)
    return is_held(folder) if mirror is None else is_held(mirror.lock_name(folder)) or mirror.is_held(folder)


@contextmanager
def claimed(folder: Path, waits_for: Callable[[str], None] | None = None) -> Iterator[Claim]:
    """Holds the claim to a stage's folder inside the block. Waits while another process holds it.

    Args:
        folder: folder of the stage.
        waits_for: as in `adapt.runner.lock.locked`.

    Raises:
        StorageError: the storage cannot be written, or does not support locks.
    """
    mirror = mirror_at(folder)
    with locked(mirror.lock_name(folder) if mirror else folder, waits_for):
        if mirror is None:
            yield FolderClaim(folder)
            return
        with leased(mirror.bucket, mirror.lease_name(folder), mirror.id, waits_for) as lease:
            try:
                yield BucketClaim(mirror, folder, lease)
            finally:
                if lease.is_lost:  # the files of the run that took over are in the bucket
                    clear(folder)
