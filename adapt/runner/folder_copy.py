"""Copies a stage's folder between the driver's node and other nodes, if the storage root is a bucket.

The driver of a job works in the local copy of the bucket on its own node (`adapt.runner.mirror`). This node is called
the home node. Each other node that runs a rank or a task of the job has its own local copy at the same path. Before a
function runs there, `FolderCopy.begin` copies the inputs of the stage from the bucket, and `FolderCopy.fetch` copies
files of the stage from the home node. `FolderCopy.send` sends new files to the home node before the function returns.
The driver then finds them there, uploads them while the stage runs, and commits them.

`HomeFiles` runs on the home node, and `FolderCopy` on other nodes. `adapt.ray.node_files` connects them.
"""

import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import uuid4

from adapt.runner.bucket_records import using
from adapt.runner.files import ASIDE, file_aside, make_folder, storage_errors, write_atomically
from adapt.runner.mirror import Mirror, mirror_at
from adapt.runner.record import RECORD_FILE, load_record
from adapt.support import errors, schema, stall_watch

BLOCK = 8 * 2**20
"""Size of the parts in which files are sent [bytes]."""
_THREADS = 4
_GROWING = (".jsonl", ".tfevents")
"""Parts of the names of files that only grow, because processes append lines or events."""
MET = (f"{stall_watch.STALLS}/", schema.END_FILE, "checkpoint-now")
"""Prefixes of the names of files through which processes on several nodes communicate while they run."""


class Stamp(NamedTuple):
    """Size and modification time of a file. A copy of the file has the same stamp."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Path) -> "Stamp":
        """Returns the stamp of a file."""
        known = file.stat()
        return cls(known.st_size, known.st_mtime_ns)


class Terms(NamedTuple):
    """Information that other nodes need about a running stage: its attempt, its inputs, and the cache limit."""

    attempt: str
    """Name of this attempt to run the stage."""
    inputs: list[str]
    """Folders of the inputs, relative to the storage root."""
    outside: list[str]
    """Absolute paths of files and folders that the stage reads outside of the storage root, such as its model."""
    cache_gb: float | None
    """Value of `storage.cache_gb`."""


class Home(Protocol):
    """Gives access to files on the home node. Paths outside of the storage root are absolute, others relative to it."""

    def terms(self, folder: str) -> Terms | None:
        """Returns what other nodes need to know about a running stage. Returns None if the stage does not run."""

    def stamps(self, folder: str, beginnings: Sequence[str] = ("",)) -> dict[str, Stamp]:
        """Returns the stamps of the files below a folder whose paths in the folder start with one of `beginnings`."""

    def read(self, file: str, offset: int, count: int) -> tuple[bytes, int]:
        """Returns a part of a file, and its CRC-32. The part is shorter than `count` [bytes] at the file's end."""

    def write(self, file: str, name: str, offset: int, part: bytes, crc: int) -> None:
        """Writes a part of a file to a temporary copy next to the file. `name` is the name of the temporary copy."""

    def finish(self, file: str, name: str, stamp: Stamp) -> None:
        """Replaces a file with its temporary copy `name`."""

    def extend(self, file: str, offset: int, part: bytes, crc: int, stamp: Stamp) -> None:
        """Overwrites a file with `part`, from `offset` to the file's end."""

    def remove(self, file: str) -> None:
        """Removes a file, if the file exists."""


def stamps_below(folder: Path, beginnings: Sequence[str] = ("",), with_hidden: bool = False) -> dict[str, Stamp]:
    """Returns the stamps of the files below a folder, keyed by the files' paths in this folder.

    Args:
        folder: the folder. It may be missing.
        beginnings: prefixes of the paths of the wanted files, relative to the folder.
        with_hidden: whether to include hidden files and records of stages.
    """
    found = {}
    for place, folders, files in os.walk(folder, followlinks=with_hidden):
        inner = Path(place).relative_to(folder)
        if not with_hidden:
            folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = (inner / name).as_posix()
            if path.startswith(tuple(beginnings)) and (
                with_hidden or not (name.startswith(".") or path == RECORD_FILE)
            ):
                with suppress(FileNotFoundError):
                    found[path] = Stamp.of(folder / path)
    return found


def _terms_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.terms"


@contextmanager
def announced(folder: Path, inputs: Iterable[Path], outside: Iterable[Path], cache_gb: float | None) -> Iterator[None]:
    """Tells other nodes about a stage while it runs in the block: its attempt, its inputs, and the cache limit."""
    root, file = folder.parent.parent, _terms_file(folder)
    terms = Terms(
        uuid4().hex, [each.relative_to(root).as_posix() for each in inputs], [str(each) for each in outside], cache_gb
    )
    write_atomically(file, json.dumps(terms._asdict()))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


class HomeFiles:
    """Reads and writes files for other nodes, on the home node itself. See `Home`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def terms(self, folder: str) -> Terms | None:
        """See `Home.terms`."""
        try:
            return Terms(**json.loads(_terms_file(self._root / folder).read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stamps(self, folder: str, beginnings: Sequence[str] = ("",)) -> dict[str, Stamp]:
        """See `Home.stamps`. If `folder` is a single file, its stamp has an empty path as key."""
        place = self._root / folder
        if place.is_file():
            return {"": Stamp.of(place)}
        return stamps_below(place, beginnings, with_hidden=Path(folder).is_absolute())

    def read(self, file: str, offset: int, count: int) -> tuple[bytes, int]:
        """See `Home.read`."""
        with (self._root / file).open("rb") as opened:
            opened.seek(offset)
            part = opened.read(count)
        return part, zlib.crc32(part)

    def write(self, file: str, name: str, offset: int, part: bytes, crc: int) -> None:
        """See `Home.write`."""
        aside = self._aside(file, name)
        make_folder(aside.parent)
        self._put(aside, "r+b" if offset else "wb", offset, part, crc)

    def finish(self, file: str, name: str, stamp: Stamp) -> None:
        """See `Home.finish`."""
        aside = self._aside(file, name)
        if aside.stat().st_size != stamp.size:
            raise OSError(f"{file} arrived incomplete")
        os.utime(aside, ns=(stamp.mtime_ns, stamp.mtime_ns))
        aside.replace(self._within(file))

    def extend(self, file: str, offset: int, part: bytes, crc: int, stamp: Stamp) -> None:
        """See `Home.extend`."""
        target = self._within(file)
        self._put(target, "r+b", offset, part, crc)
        os.truncate(target, offset + len(part))
        os.utime(target, ns=(stamp.mtime_ns, stamp.mtime_ns))

    def remove(self, file: str) -> None:
        """See `Home.remove`."""
        self._within(file).unlink(missing_ok=True)

    def _put(self, file: Path, mode: str, offset: int, part: bytes, crc: int) -> None:
        if zlib.crc32(part) != crc:
            raise OSError(f"a part of {file} arrived damaged: its checksum differs from the sender's")
        with storage_errors(file), file.open(mode) as opened:
            opened.seek(offset)
            opened.write(part)

    def _aside(self, file: str, name: str) -> Path:
        target = self._within(file)
        return target.with_name(f".{target.name}.{name}{ASIDE}")

    def _within(self, file: str) -> Path:
        path = Path(os.path.normpath(self._root / file))
        if not path.is_relative_to(self._root):
            raise errors.StorageError(f"{file} is not in the storage root", "report this as a bug of dontstop")
        return path


class FolderCopy:
    """A copy of a stage's folder on a node other than the driver's node (the home node). Threads may share it.

    Args:
        root: folder of this node's local copy of the bucket.
        folder: path of the stage's folder in the storage root.
        home: gives access to the files on the home node.
        terms: the attempt to run the stage, and the files that it reads.
        mirror: this node's local copy of the bucket. None means the copy at `root`.
    """

    def __init__(self, root: Path, folder: str, home: Home, terms: Terms, mirror: Mirror | None = None) -> None:
        self._root, self._name, self._folder, self._home = root, folder, root / folder, home
        self.terms, self._mirror = terms, mirror or mirror_at(root)
        self._lock, self._using = threading.RLock(), ExitStack()
        self._theirs: dict[str, Stamp] = {}
        """Size and time of each file that came from the home node and has not changed on this node since."""
        self._mine: dict[str, Stamp] = {}
        """Size and time of each file that was written on this node, when it was last sent to the home node."""
        self._numbers: dict[str, int] = {}
        """Inode of each sent file. It shows whether a file was replaced by a new file of the same name."""
        self._seen: dict[str, Stamp] = {}
        """Size and time of each changed file, at the previous call of `meet`."""
        self._is_begun = False

    def begin(self) -> None:
        """Copies the stage's inputs to this node, and removes files of earlier attempts. Later calls do nothing."""
        with self._lock:
            if self._is_begun:
                return
            make_folder(self._folder)
            inputs = [self._root / each for each in self.terms.inputs]
            self._using.enter_context(using([self._folder, *inputs]))
            self._bring(inputs)
            for path in self.terms.outside:
                self._bring_outside(Path(path))
            here, there = stamps_below(self._folder), self._home.stamps(self._name)
            for name, stamp in here.items():
                if there.get(name) == stamp:
                    self._theirs[name] = stamp
                else:
                    (self._folder / name).unlink(missing_ok=True)
            self._is_begun = True

    def _bring(self, inputs: Sequence[Path]) -> None:
        mirror = self._mirror
        if mirror is None or not inputs:
            return
        mirror.cache_gb = self.terms.cache_gb
        mirror.records.refresh(0)
        for folder in inputs:
            record = load_record(folder)
            if record is None:
                raise errors.StageError(
                    f"{mirror.url(folder)} is an input of this stage, but the record of that folder no longer exists",
                    "run the same command again",
                )
            mirror.bring_checked(record)

    def _bring_outside(self, path: Path) -> None:
        """Copies files that the user named, such as a model, to the same path on this node. Keeps existing files."""
        stamps = self._home.stamps(str(path))
        missing = [name for name in stamps if not (path / name).exists()]
        try:
            self._all(lambda name: self._fetch(str(path / name), path / name, stamps[name]), missing)
        except (OSError, errors.StorageError) as error:
            raise errors.StorageError(
                f"this node cannot copy {path} from the job's node: {error}",
                f"on every node, allow the user to write to {path} or put a copy there; or name a model of the Hugging"
                " Face Hub",
            ) from error

    @property
    def is_ready(self) -> bool:
        """Whether the inputs of the stage are on this node."""
        return self._is_begun

    def end(self) -> None:
        """Allows other processes on this node to remove files of the stage and its inputs from the local copy."""
        self._using.close()

    def fetch(self, beginnings: Sequence[str] = ("",), leaves: Sequence[str] = ()) -> None:
        """Copies files of the stage that are new or changed on the home node, unless they have changed on this node.

        Args:
            beginnings: prefixes of the names of the files. Files that the home node has removed are also removed on
                this node.
            leaves: prefixes of the names of files that are not copied.
        """
        with self._lock:
            there = self._home.stamps(self._name, beginnings)
            there = {name: stamp for name, stamp in there.items() if not name.startswith(tuple(leaves))}
            here = stamps_below(self._folder, beginnings)

            def is_wanted(name: str) -> bool:
                known = self._mine.get(name) or self._theirs.get(name)
                if name not in here:  # a sent file that this node removed will also be removed on the home node
                    return name not in self._mine
                return here[name] == known != there[name]

            self._all(lambda name: self._take(name, there[name]), [name for name in there if is_wanted(name)])
            for name in [name for name in self._theirs if name.startswith(tuple(beginnings)) and name not in there]:
                if not name.startswith(tuple(leaves)):
                    (self._folder / name).unlink(missing_ok=True)
                    del self._theirs[name]

    def _take(self, name: str, stamp: Stamp) -> None:
        for is_last in (False, False, True):
            try:
                self._fetch(f"{self._name}/{name}", self._folder / name, stamp)
                break
            except FileNotFoundError:
                return  # the home node removed the file meanwhile
            except OSError:
                if is_last:
                    raise
            stamp = self._home.stamps(self._name, (name,)).get(name, stamp)  # the file may have been replaced meanwhile
        self._mine.pop(name, None)
        self._theirs[name] = stamp

    def _fetch(self, source: str, target: Path, stamp: Stamp) -> None:
        with file_aside(target) as aside:
            with aside.open("wb") as opened:
                while opened.tell() < stamp.size:
                    part, crc = self._home.read(source, opened.tell(), min(BLOCK, stamp.size - opened.tell()))
                    if zlib.crc32(part) != crc or not part:
                        raise OSError(f"a part of {source} arrived empty, or its checksum differs from the sender's")
                    opened.write(part)
            os.utime(aside, ns=(stamp.mtime_ns, stamp.mtime_ns))

    def send(self) -> None:
        """Sends new and changed files to the home node, oldest first. Removes files there that were removed here."""
        with self._lock:
            here = stamps_below(self._folder)
            changed = self._changed(here)
            self._all(lambda name: self._give(name, here[name]), sorted(changed, key=lambda name: here[name].mtime_ns))
            self._remove_gone(here)

    def meet(self) -> None:
        """Exchanges the files with prefixes MET with the home node, and sends changed files, about once per second.

        A large file is sent when it has not changed between two calls, because it may still be being written.
        """
        with self._lock:
            here, there = stamps_below(self._folder), self._home.stamps(self._name, MET)
            for name in [name for name in (*self._theirs, *self._mine) if name.startswith(MET)]:
                if name in here and name not in there:  # the home node removed the file
                    (self._folder / name).unlink(missing_ok=True)
                    del here[name]
                    self._forget(name)
            changed = self._changed(here)
            for name, stamp in there.items():
                known = self._mine.get(name) or self._theirs.get(name)
                if known != stamp and name not in changed and (name in here or known is None):
                    self._take(name, stamp)
            seen, self._seen = self._seen, {name: here[name] for name in changed}
            ready = [
                name for name in changed if _grows(name) or here[name].size <= BLOCK or seen.get(name) == here[name]
            ]
            self._all(lambda name: self._give(name, here[name]), ready)
            self._remove_gone(here, MET)

    def _changed(self, here: dict[str, Stamp]) -> list[str]:
        return [name for name, stamp in here.items() if stamp not in (self._theirs.get(name), self._mine.get(name))]

    def _remove_gone(self, here: dict[str, Stamp], beginnings: Sequence[str] = ("",)) -> None:
        for name in [name for name in (*self._mine, *self._theirs) if name.startswith(tuple(beginnings))]:
            if name not in here and not (self._folder / name).exists():
                if name in self._mine or name.startswith(MET):
                    self._home.remove(f"{self._name}/{name}")
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._mine.pop(name, None)
        self._theirs.pop(name, None)

    def _give(self, name: str, stamp: Stamp) -> None:
        try:
            number = (self._folder / name).stat().st_ino
            known = self._mine.get(name) if _grows(name) and self._numbers.get(name) == number else None
            give(self._home, self._folder / name, f"{self._name}/{name}", stamp, known)
        except FileNotFoundError:
            return  # the file was removed here meanwhile
        self._theirs.pop(name, None)
        self._mine[name], self._numbers[name] = stamp, number

    @staticmethod
    def _all(call: Callable[[str], None], names: Sequence[str]) -> None:
        if len(names) < 2:
            for name in names:
                call(name)
            return
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(call, names):
                pass


def give(home: Home, file: Path, target: str, stamp: Stamp, known: Stamp | None = None) -> None:
    """Sends a file to the home node. The file appears there when it is complete.

    Args:
        home: gives access to files on the home node.
        file: the file.
        target: path in the storage root.
        stamp: size and time of the file. Text that is appended to the file meanwhile is not sent.
        known: size and time of the home node's copy, if the file has only grown since. Otherwise None, to send the
            whole file.

    Raises:
        FileNotFoundError: the file is gone.
        StorageError: the home node cannot write the file.
    """
    name = uuid4().hex
    with file.open("rb") as opened:
        if known and known.size <= stamp.size < known.size + BLOCK:
            opened.seek(known.size)
            part = opened.read(stamp.size - known.size)
            home.extend(target, known.size, part, zlib.crc32(part), stamp)
            return
        offset = 0
        while offset < stamp.size or not offset:
            part = opened.read(min(BLOCK, stamp.size - offset))
            if not part and stamp.size:
                raise FileNotFoundError(f"{file} became shorter while it was sent")
            home.write(target, name, offset, part, zlib.crc32(part))
            offset += len(part)
            if not stamp.size:
                break
    home.finish(target, name, stamp)


def give_folder(home: Home, folder: Path, target: str) -> None:
    """Sends all files of a folder to a folder on the home node."""
    stamps = stamps_below(folder, with_hidden=True)
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(lambda name: give(home, folder / name, f"{target}/{name}", stamps[name]), stamps):
            pass


def _grows(name: str) -> bool:
    return any(part in name for part in _GROWING)
