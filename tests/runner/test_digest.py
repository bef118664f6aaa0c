"""Tests digests of files and their cache.

Tests that a stage's files are written before its record, and are checked later.
"""

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.corpus.screening import REJECTS
from adapt.corpus.streaming import INDEX_FILE
from adapt.runner import Done, Outcome, Record, Store, digest, ensure, ensure_all, plan_stages
from adapt.runner.digest import SPARE, Digests, check_outputs, settle
from adapt.support.errors import DataError, StageError, StorageError
from adapt.train.checkpoints.branch import BRANCHES
from adapt.train.training_run import CHECKPOINTS
from tests.runner import toys
from tests.runner.toys import ToyResult, content, part, ran, single, states


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "runs" / ".digests.json"


def write(file: Path, content: bytes, at: int = 1_000_000_000) -> Path:
    """Writes a file and sets its modification time, since two writes may have the same time stamp."""
    file.write_bytes(content)
    os.utime(file, (at, at))
    return file


def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that counts the files whose content was read for a digest since the function's last call."""
    real, calls = hashlib.file_digest, []

    def counted(*args: object) -> object:
        calls.append(args)
        return real(*args)  # type: ignore[arg-type]

    def collect() -> int:
        count = len(calls)
        calls.clear()
        return count

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return collect


def test_a_digest_is_the_sha256_of_the_content(tmp_path: Path, cache: Path) -> None:
    content = os.urandom(300_000)
    digests = Digests(cache)
    assert digests.of(write(tmp_path / "a", content)) == hashlib.sha256(content).hexdigest()
    assert digests.of(write(tmp_path / "b", content, at=5)) == digests.of(tmp_path / "a")
    assert digests.of(write(tmp_path / "c", content + b"x")) != digests.of(tmp_path / "a")
    assert digests.of(write(tmp_path / "empty", b"")) == hashlib.sha256(b"").hexdigest()


def test_a_file_is_read_only_once_even_across_processes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = looks(monkeypatch)
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    first = digests.of(file)
    assert digests.of(file) == first
    digests.save()
    assert Digests(cache).of(file) == first
    assert count() == 1


@pytest.mark.parametrize(
    ("content", "at"), [(b"new content", 1_000_000_000), (b"tex2", 1_000_000_001)], ids=["size", "time"]
)
def test_a_changed_file_is_read_again(tmp_path: Path, cache: Path, content: bytes, at: int) -> None:
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    digests.of(file)
    digests.save()
    write(file, content, at)
    expected = hashlib.sha256(content).hexdigest()
    assert digests.of(file) == expected
    assert Digests(cache).of(file) == expected


def test_a_replaced_file_is_read_again(tmp_path: Path, cache: Path) -> None:
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    digests.of(file)
    write(tmp_path / "b", b"tex2").rename(file)  # the new file has the size and time of the old file
    assert digests.of(file) == hashlib.sha256(b"tex2").hexdigest()


def test_a_changed_file_with_its_time_reset_is_read_again(tmp_path: Path, cache: Path) -> None:
    file = write(tmp_path / "a", b"text")
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    digests = Digests(cache)
    digests.of(file)
    digests.save()
    time.sleep(0.02)  # this is longer than a tick of the file system's clock
    with file.open("r+b") as same:  # writes like `rsync --inplace --times`: inode, size and time stay the same
        same.write(b"tex2")
    os.utime(file, ns=times)
    expected = hashlib.sha256(b"tex2").hexdigest()
    assert (digests.of(file), Digests(cache).of(file)) == (expected, expected)


def test_touching_a_file_does_not_change_its_digest(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = looks(monkeypatch)
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    first = digests.of(file)
    os.utime(file, (5, 5))
    assert digests.of(file) == first
    assert count() == 2  # the file was read twice


BROKEN = [b"", b"{", b"[]", b"7", b"null", b"\xff"]
STRANGE = [b"7", b"[]", b'["x"]', b"[1, 2]", b"[1, 2, 3]", b'{"a": 1}', b'{"a": 1, "b": 2}', b"null", b'"ab"']


@pytest.mark.parametrize("content", [*BROKEN, *(b'{"%s": ' + entry + b"}" for entry in STRANGE)])
def test_a_corrupt_cache_is_an_empty_one(tmp_path: Path, cache: Path, content: bytes) -> None:
    file = write(tmp_path / "a", b"text")
    cache.parent.mkdir()
    cache.write_bytes(content.replace(b"%s", str(file).encode()))
    digests = Digests(cache)
    assert digests.of(file) == hashlib.sha256(b"text").hexdigest()
    digests.save()
    assert list(json.loads(cache.read_text())) == [str(file)]


def test_a_deleted_file_is_removed_from_the_cache(tmp_path: Path, cache: Path) -> None:
    files = [write(tmp_path / name, b"text") for name in "ab"]
    digests = Digests(cache)
    digests.of_all(files)
    digests.save()
    assert set(json.loads(cache.read_text())) == {str(file) for file in files}
    files[0].unlink()
    digests = Digests(cache)
    digests.of(write(tmp_path / "c", b"text"))
    digests.save()
    assert set(json.loads(cache.read_text())) == {str(tmp_path / "b"), str(tmp_path / "c")}


def test_the_cache_is_not_written_without_new_digests(tmp_path: Path, cache: Path) -> None:
    Digests(cache).save()
    assert not cache.exists()
    digests = Digests(cache)
    digests.of(write(tmp_path / "a", b"text"))
    digests.save()
    before = cache.stat().st_ino
    again = Digests(cache)
    again.of(tmp_path / "a")
    again.save()
    digests.save()
    assert cache.stat().st_ino == before


def test_a_cache_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    digests = Digests(tmp_path / "file" / ".digests.json")
    digests.of(write(tmp_path / "a", b"text"))
    with pytest.raises(StorageError, match=r"\.digests\.json"):
        digests.save()


def test_the_digest_of_several_files_depends_on_names_contents_and_order(tmp_path: Path, cache: Path) -> None:
    one, two, twin = (write(tmp_path / name, content) for name, content in [("1", b"x"), ("2", b"y"), ("3", b"x")])
    digests = Digests(cache)
    lists: tuple[list[Path], ...] = ([one, two], [two, one], [twin, two], [one], [one, twin], [])
    assert len({digests.of_all(files) for files in lists}) == len(lists)


def test_the_digest_of_a_folder_depends_on_the_paths_in_it(tmp_path: Path, cache: Path) -> None:
    def of(folder: str, *names: str) -> str:
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(tmp_path / folder / name, b"x")
        return Digests(cache).of_all([tmp_path / folder / name for name in names], tmp_path / folder)

    assert of("here", "train/a", "b") == of("there", "train/a", "b")
    assert len({of("1", "train/a", "b"), of("2", "test/a", "b"), of("3", "train/b", "b"), of("4", "a", "b")}) == 4


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, cache: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(DataError, match=f"cannot read {path}: "):
            Digests(cache).of(path)


@pytest.mark.parametrize(("damaged", "other"), [("left", "right"), ("right", "left")])
def test_missing_files_stop_a_run_before_any_stage_starts(store: Store, runs: Path, damaged: str, other: str) -> None:
    top = toys.diamond(runs)
    record = ensure(top.inputs[damaged], store).record
    ran(runs)
    (record.path / "part-1").unlink()
    for look in (ensure, plan_stages, lambda stage, store: ensure_all([stage], store, None, 2)):
        with pytest.raises(
            StageError, match=f"the stage in {record.path} is finished, but its files have changed: part-1 is missing"
        ):
            look(top, store)
    assert ran(runs) == []
    (record.path / "stage.json").unlink()  # deleting the record is the fix that the message names
    assert content(ensure(top, store).path) == toys.expected("top")
    assert sorted(ran(runs)) == sorted([damaged, other, "top"])
    assert content(record.path) == toys.expected(damaged)


def test_files_that_no_stage_needs_may_be_deleted(store: Store, runs: Path) -> None:
    record = ensure(toys.diamond(runs), store).record
    ran(runs)
    (Path(record.inputs["left"]["path"]) / "part-1").unlink()
    assert ensure(toys.diamond(runs), store).record == record
    assert states(toys.diamond(runs), store) == dict.fromkeys(toys.NAMES, "done")
    assert ran(runs) == []


SPARED = ("checkpoints/step-1/weights", "branch/step-1/weights", "tensorboard/events", "items.txt", "README.md")


@pytest.mark.parametrize("name", [*SPARED, ".training.lock", "deep/.half.4711"])
def test_spare_files_may_be_deleted_or_edited(store: Store, name: str) -> None:
    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")
        (folder / "result").write_text("text")
        return Outcome(ToyResult())

    record = ensure(single(run), store).record
    assert record.outputs == {"result": 4}
    (record.path / name).write_text("another text")
    assert ensure(single(run), store).record == record
    (record.path / name).unlink()
    assert ensure(single(run), store).record == record


def test_names_of_spare_files_match_those_that_stages_write() -> None:
    assert {f"{CHECKPOINTS}/", f"{BRANCHES}/", f"{REJECTS}/", INDEX_FILE} < set(SPARE)


def test_all_files_are_on_disk_before_the_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "a").write_text("a")
        (folder / "b").write_text("b")
        monkeypatch.setattr(os, "fsync", noted)
        return Outcome(ToyResult())

    folder = ensure(single(run), store).path
    record = next(place for place, file in enumerate(synced) if ".stage.json." in file)
    before = {str(folder / name) for name in ("deep/er/a", "b", "deep/er", "deep", ".")}
    assert {os.path.normpath(file) for file in synced[:record]} == {os.path.normpath(each) for each in before}
    assert set(synced[record + 1 :]) == {str(folder), str(folder.parent)}


@pytest.mark.parametrize(("code", "message"), [(errno.ENOSPC, "no space left"), (errno.EDQUOT, "no space left")])
def test_a_stage_stays_unfinished_if_the_disk_is_full_during_sync(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    stage = single(lambda folder, done: Outcome(ToyResult((folder / "out").write_text("done"))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match=message):
            ensure(stage, store)
    assert store.find("toy", "toy", stage.key) is None


def test_a_file_system_without_sync_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    (tmp_path / "a").write_text("text")
    assert settle(tmp_path) == {"a": 4}


def test_checking_the_sizes_of_many_files_is_fast(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number}").touch()
    record = Record("toy", "toy", "", 1, {}, {}, {}, {}, {}, {f"{n}": 0 for n in range(2000)}, {}, "", tmp_path)
    start = time.process_time()  # CPU time, because the machine may be busy
    check_outputs(record)
    assert time.process_time() - start < 0.5  # this takes about 10 ms on an idle machine


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Clears the cache of checked files, as in a new process, and returns the cache."""
    known: dict[str, str] = {}
    monkeypatch.setattr(digest, "checked_stamps", known)
    return known


def flip(file: Path) -> None:
    """Flips a bit of a file, and resets its modification time."""
    times = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x04
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_record_has_the_digest_of_each_file(store: Store) -> None:
    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        for name in ("a", "deep/b", "checkpoints/spare", ".hidden"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        return Outcome(ToyResult())

    record = ensure(single(run), store).record
    assert record.digests == {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "deep/b")}
    assert record.digests.keys() == record.outputs.keys()


@pytest.mark.parametrize("same_process", [True, False])
def test_a_flipped_bit_stops_the_stage_that_reads_the_file(
    store: Store, runs: Path, new_process: dict[str, str], same_process: bool
) -> None:
    top = toys.diamond(runs)
    left = part(top, "left")
    record = ensure(left, store).record
    ran(runs)
    flip(record.path / "part-1")
    if not same_process:
        new_process.clear()
    said = f"the stage in {record.path} is finished, but its files have changed: part-1 has other content"
    with pytest.raises(StageError, match=said) as caught:
        ensure(top, store)
    assert f"delete {record.path / 'stage.json'}" in caught.value.fix
    assert "top" not in ran(runs)
    (record.path / "stage.json").unlink()  # deleting the record is the fix that the message names
    assert toys.content(ensure(top, store).path) == toys.expected("top")


def test_every_file_is_read_once_per_process(
    store: Store, runs: Path, new_process: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = digest.sha256_of
    monkeypatch.setattr(digest, "sha256_of", lambda file: read.append(file) or real(file))
    source = part(part(toys.diamond(runs), "left"), "source")
    record = ensure(source, store).record
    files = sorted(record.path / name for name in record.outputs)
    assert sorted(read) == files  # each file was read for its digest when the stage finished
    read.clear()
    digest.check_content(record)
    assert read == []
    new_process.clear()
    for _ in range(2):
        digest.check_content(record)
    assert sorted(read) == files


def test_a_plan_and_a_finished_job_read_no_content(store: Store, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ensure(toys.diamond(runs), store).record
    monkeypatch.setattr(digest, "sha256_of", pytest.fail)
    assert ensure(toys.diamond(runs), store).record == record
    assert all(line.record for line in plan_stages(toys.diamond(runs), store))


def without_digests(record: Record) -> None:
    """Removes the digests from a record, because records of earlier versions have no digests."""
    file = record.path / "stage.json"
    content = json.loads(file.read_text())
    del content["digests"]
    file.write_text(json.dumps(content))


def test_records_of_earlier_versions_are_used_by_their_sizes(
    store: Store, runs: Path, new_process: dict[str, str]
) -> None:
    top = toys.diamond(runs)
    for name in ("left", "right"):
        without_digests(ensure(part(top, name), store).record)
    new_process.clear()
    assert toys.content(ensure(top, store).path) == toys.expected("top")


def test_a_stages_file_named_in_a_configuration_is_compared_with_its_record(store: Store, runs: Path) -> None:
    """The digest of such a file, for example of an exported model, must equal the digest in the stage's record."""
    record = ensure(part(part(toys.diamond(runs), "left"), "source"), store).record
    file = record.path / "part-1"
    assert Digests().of(file) == record.digests["part-1"]
    flip(file)
    with pytest.raises(
        StageError, match=f"{file} has changed since the stage {record.path.parent.name} wrote it"
    ) as caught:
        Digests().of(file)
    assert "use a copy of its folder without stage.json" in caught.value.fix
    without_digests(record)
    assert Digests().of(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_additional_files_in_a_stages_folder_are_not_checked(store: Store, runs: Path) -> None:
    record = ensure(part(part(toys.diamond(runs), "left"), "source"), store).record
    (record.path / "mine").write_text("text")
    (record.path / "README.md").write_text("edited")
    assert Digests().of_all([record.path / "mine", record.path / "README.md"])


def test_checks_of_many_gigabytes_are_logged(
    store: Store,
    runs: Path,
    new_process: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = ensure(part(part(toys.diamond(runs), "left"), "source"), store).record
    new_process.clear()
    monkeypatch.setattr(digest, "SAID_BYTES", 10)
    digest.check_content(record)
    assert f"checking the content of {record.path.parent.name}/{record.path.name} (0 GB)" in capsys.readouterr().err
