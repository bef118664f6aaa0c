"""Tests which files a bucket contains after two runs of a stage, if one run was suspended or killed."""

import hashlib
import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Done, Outcome, Stage, Store, bucket_records, ensure
from adapt.runner import claim as claim_module
from adapt.runner import lock as lock_module
from adapt.runner import mirror as mirror_module
from adapt.runner.bucket import ReadObject, StoredObject
from adapt.runner.bucket_errors import Address, ConflictError
from adapt.runner.claim import BucketClaim
from adapt.runner.lock import Lease, leased
from adapt.runner.mirror import Mirror, fetch_spare, mirror_at, mirror_folder
from adapt.runner.record import Record, load_record
from adapt.support.errors import BudgetError, ConfigError, StageError, StorageError
from adapt.support.schema import END_FILE
from tests.runner.toys import ToyResult, single

KEY = "0123456789abcdef" * 4


class Objects:
    """A bucket in memory."""

    def __init__(self) -> None:
        self.address, self.stored = Address("tests", "runs"), dict[str, tuple[bytes, str]]()
        self.breaks_at, self._count = "", 0
        self.is_down = False
        """Whether the store cannot be reached for a minute: requests that do not wait for this long fail."""

    def hasty(self, patience_s: float) -> "Hasty":
        return Hasty(self)

    def put(self, name: str, body: bytes, replaces: str | None) -> str:
        there = self.stored.get(name, (b"", ""))[1]
        if replaces is not None and replaces != there:
            raise ConflictError(f"{name} has changed", "")
        self._count += 1
        self.stored[name] = (body, f"etag-{self._count}")
        return self.stored[name][1]

    def upload(self, name: str, file: Path, replaces: str | None) -> str:
        return self.put(name, file.read_bytes(), replaces)

    def get(self, name: str) -> ReadObject | None:
        return ReadObject(*self.stored[name], True) if name in self.stored else None

    def abort_uploads(self, prefix: str) -> None:
        pass

    def download(self, name: str, file: Path) -> bool:
        if self.breaks_at and name.endswith(self.breaks_at):
            raise KeyboardInterrupt
        if name in self.stored:
            file.write_bytes(self.stored[name][0])
        return name in self.stored

    def objects(self, prefix: str, is_flat: bool = False) -> dict[str, StoredObject]:
        found = {name: of for name, of in self.stored.items() if name.startswith(prefix)}
        return {
            name: StoredObject(len(body), etag, 0.0)
            for name, (body, etag) in found.items()
            if not (is_flat and "/" in name.removeprefix(prefix))
        }

    def folders(self, prefix: str) -> list[str]:
        return sorted({name.removeprefix(prefix).split("/")[0] for name in self.stored if name.startswith(prefix)})

    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.stored.pop(name, None)


class Hasty:
    """The same bucket for requests that wait only for seconds."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        if self._objects.is_down:
            raise StorageError("the store cannot be reached", "")
        return getattr(self._objects, name)


@pytest.fixture
def objects() -> Objects:
    return Objects()


class Machine:
    """A machine with its local copy of the bucket, which works on one stage."""

    def __init__(self, root: Path, objects: Objects) -> None:
        root.mkdir()
        self.mirror = Mirror(root, objects)  # type: ignore[arg-type]
        self.folder = root / "train" / f"name-{KEY[:16]}"

    def claim(self, lease: Lease) -> BucketClaim:
        return BucketClaim(self.mirror, self.folder, lease)

    def take(self) -> Lease:
        """Takes the lease, and does not renew it later. The lease is free, because its last holder did not renew it."""
        return lock_module.take_lease(self.mirror.bucket, self.mirror.lease_name(self.folder), self.mirror.id, None)

    def files(self) -> dict[str, str]:
        found = {file.name: file.read_text() for file in self.folder.iterdir() if file.is_file()}
        return {name: text for name, text in found.items() if not name.startswith(".") and name != "stage.json"}

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def record(self) -> Record:
        files = self.files()
        return Record(
            stage="train",
            name="name",
            key=KEY,
            version=1,
            what={},
            inputs={},
            metrics={},
            cost={},
            resources={},
            outputs={name: len(text) for name, text in files.items()},
            packages={},
            started_at="",
            digests={name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
            path=self.folder,
        )

    def work(self, **files: str) -> None:
        """Runs the stage until its files are uploaded, and ends without a result."""
        with leased(self.mirror.bucket, self.mirror.lease_name(self.folder), self.mirror.id) as lease:
            claim = self.claim(lease)
            with claim.begin([]):
                self.write(**files)
                claim._uploads.send(is_growing=False)


@pytest.fixture
def machines(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    monkeypatch.setattr(lock_module, "LEASE_S", 0.0)  # a lease that is not renewed ends at once
    monkeypatch.setattr(lock_module, "_POLL_S", 0.0)
    return [Machine(tmp_path / name, objects) for name in ("one", "two", "three")]


def result(machine: Machine) -> dict[str, str]:
    """Copies the finished stage's files to a machine that lacks them, checks their digests, and returns the files."""
    machine.mirror.records.refresh(0.0)
    folder = machine.mirror.records.folder("train", KEY)
    assert folder
    record = load_record(folder)
    assert record
    machine.mirror.bring(record)
    return machine.files()


def test_a_run_deletes_parts_of_uploads_that_the_last_run_did_not_finish(
    objects: Objects, machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted: list[str] = []
    monkeypatch.setattr(objects, "abort_uploads", aborted.append)
    for machine in machines[:2]:
        assert aborted == []  # a stage that no run has begun has no uploads
        machine.work(x="text")
    assert aborted == [f"train/{machines[0].folder.name}/"]


def test_an_outage_of_a_minute_does_not_fail_a_stage(objects: Objects, machines: list[Machine]) -> None:
    """The store is down whenever the stage begins, commits and cleans, and no upload waits before these requests."""
    one, two, _ = machines
    log = one.mirror.root / "logs" / "train" / f"{one.folder.name}.jsonl"
    log.parent.mkdir(parents=True)
    claim = one.claim(one.take())
    objects.is_down = True
    with claim.begin([]):
        objects.is_down = False
        one.write(x="text")
        claim._uploads.send(is_growing=False)
        objects.is_down = True
        log.write_text("finished")
        claim.commit(one.record())
        claim.clean(one.record())
    assert result(two) == {"x": "text"}
    assert objects.stored[f"logs/train/{one.folder.name}.jsonl"][0] == b"finished"


def test_a_record_that_arrives_after_the_takeover_has_its_own_files(objects: Objects, machines: list[Machine]) -> None:
    """The first run is suspended between its last check of the lease and the request that creates the record."""
    one, two, three = machines
    first = one.claim(one.take())
    with first.begin([]):
        one.write(model="of one", x="same")
        first._uploads.send(is_growing=False)
        second = two.claim(two.take())
        with second.begin([]):
            assert two.files() == {"model": "of one", "x": "same"}
            two.write(model="of two")
            second._uploads.send(is_growing=False)
            first._lease.check = lambda is_patient=False: None  # type: ignore[method-assign]
            first.commit(one.record())
            with pytest.raises(StorageError, match="another run finished"), second.running():
                second.commit(two.record())
    assert result(three) == {"model": "of one", "x": "same"}


def test_a_run_that_wakes_up_harms_no_file_of_its_successor(objects: Objects, machines: list[Machine]) -> None:
    one, two, three = machines
    first = one.claim(one.take())
    with first.begin([]):
        one.write(x="first", y="first")
        first._uploads.send(is_growing=False)
        second = two.claim(two.take())
        with second.begin([]):
            one.write(x="late")
            (one.folder / "y").unlink()
            with suppress(StorageError):
                first._uploads.send(is_growing=False)
            two.write(z="second")
            second.commit(two.record())
            second.clean(two.record())
    assert result(three) == {"x": "first", "y": "first", "z": "second"}
    assert {name.split("/")[2] for name in objects.objects("train/")} == {second._uploads.run}


def test_a_run_that_lost_its_lease_is_asked_to_end_and_says_why(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "_PAUSE_S", 0.01)
    one, two, _ = machines
    lease = one.take()
    claim = one.claim(lease)

    def training() -> None:
        two.take()
        with suppress(StorageError):
            lease.check()  # this renewal notices that the lease is lost
        end = time.monotonic() + 60
        while not (one.folder / END_FILE).exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        raise BudgetError("training stopped after step 3 of 9, with a checkpoint")

    with claim.begin([]), pytest.raises(StorageError, match="another run took over"), claim.running():
        training()


def test_a_file_of_the_right_size_and_other_content_is_copied_again(machines: list[Machine]) -> None:
    """The file was written by a killed run of the same stage."""
    one, two, _ = machines
    two.work(x="of two")
    claim = one.claim(one.take())
    with claim.begin([]):
        one.write(x="of one")
        claim.commit(one.record())
    two.mirror.records.refresh(0.0)
    record = load_record(two.folder)
    assert record
    two.mirror.bring_checked(record)
    assert two.files() == {"x": "of one"}


def test_a_folder_that_was_handed_out_is_not_removed(tmp_path: Path) -> None:
    folders = [tmp_path / "train" / name for name in ("held", "free")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "x").write_text("text")
        (folder / "stage.json").write_text("{}")
    bucket_records.hold(folders[0])
    bucket_records.evict(tmp_path, folders, 0.0, tmp_path)
    assert [(folder / "x").exists() for folder in folders] == [True, False]


def test_files_that_a_killed_process_was_removing_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "train" / "name"
    folder.mkdir(parents=True)
    (folder / "x").write_text("text")
    (folder / "stage.json").write_text("{}")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "mkdir", die)
        with pytest.raises(KeyboardInterrupt):
            bucket_records.evict(tmp_path, [folder], 0.0, tmp_path)
    assert not folder.exists()
    folder.mkdir()
    (folder / "stage.json").write_text("{}")  # `BucketRecords.refresh` copies the missing record again
    assert bucket_records.evict(tmp_path, [folder], 0.0, tmp_path) == 0.0
    assert [file.name for file in tmp_path.rglob("*") if file.is_file() and file.name != ".name.use"] == ["stage.json"]


def test_a_holder_that_copied_nothing_does_not_count_as_the_newest(machines: list[Machine]) -> None:
    one, two, _ = machines
    two.work(step="100")
    one.work(step="900")
    two.take()  # this run is killed before it copies anything
    two.work(other="x")
    assert two.files() == {"step": "900", "other": "x"}


def test_a_copy_that_was_interrupted_starts_again(objects: Objects, machines: list[Machine]) -> None:
    one, two, _ = machines
    one.work(a="a", b="b")
    objects.breaks_at = "/b"
    with pytest.raises(KeyboardInterrupt):
        two.work()
    objects.breaks_at = ""
    two.work()
    assert two.files() == {"a": "a", "b": "b"}


def test_a_run_that_was_killed_before_it_uploaded_all_files_leaves_those_of_the_run_before(
    machines: list[Machine],
) -> None:
    one, two, three = machines
    one.work(a="a", b="b")
    second = two.claim(two.take())
    with second.begin([]):  # this run writes a file, but uploads nothing
        two.write(a="newer")
    three.work()
    assert three.files() == {"a": "a", "b": "b"}
    three.work(c="c")
    one.work()
    assert one.files() == {"a": "a", "b": "b", "c": "c"}


def test_an_object_that_vanishes_while_it_is_copied_is_left_out(objects: Objects, machines: list[Machine]) -> None:
    one, two, _ = machines
    one.work(a="a", b="b")
    listing = objects.objects

    def stale(prefix: str, is_flat: bool = False) -> dict[str, StoredObject]:
        found = listing(prefix, is_flat)
        return {**found, f"{prefix}gone": StoredObject(1, "x", 0.0)} if prefix.startswith("train/") else found

    objects.objects = stale  # type: ignore[method-assign]
    two.work()
    assert two.files() == {"a": "a", "b": "b"}


@pytest.mark.parametrize("field", ["outputs", "digests"])
def test_a_record_that_names_files_outside_of_its_folder_is_refused(
    objects: Objects, machines: list[Machine], field: str
) -> None:
    one, two, _ = machines
    claim = one.claim(one.take())
    with claim.begin([]):
        claim.commit(one.record())
    name = f"records/train/{KEY[:16]}.json"
    values = json.loads(objects.stored[name][0])
    values[field] = {"../../../victim": 0 if field == "outputs" else "0" * 64}
    objects.put(name, json.dumps(values).encode(), None)
    with pytest.raises(StageError, match="outside of its folder"):
        two.mirror.records.folder("train", KEY)


def test_a_file_is_deleted_from_the_bucket_when_two_passes_miss_it(objects: Objects, machines: list[Machine]) -> None:
    """Listing a folder takes time, so a file that is renamed meanwhile may be missing from the list."""
    one = machines[0]
    claim = one.claim(one.take())
    with claim.begin([]):
        one.write(a="a")
        claim._uploads.send(is_growing=True)
        (one.folder / "a").unlink()
        claim._uploads.send(is_growing=True)
        assert len(objects.objects("train/")) == 1
        claim._uploads.send(is_growing=True)
        assert not objects.objects("train/")


def test_a_run_that_lost_its_lease_does_not_replace_the_log(objects: Objects, machines: list[Machine]) -> None:
    one, two, _ = machines
    first = one.claim(one.take())
    for machine, text in ((one, "of one"), (two, "of two")):
        log = machine.mirror.root / "logs" / "train" / f"{machine.folder.name}.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text(text)
    second = two.claim(two.take())
    with second.begin([]):
        second._uploads.send_log()
        with pytest.raises(StorageError, match="was lost"):
            first._uploads.send_log()
    assert objects.stored[f"logs/train/{one.folder.name}.jsonl"][0] == b"of two"


def test_a_damaged_text_does_not_keep_displays_from_the_rest(
    objects: Objects, machines: list[Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, _ = machines
    claim = one.claim(one.take())
    with claim.begin([]):
        one.write(**{"a.json": "[1]", "b.json": "[2]"})
        claim.commit(one.record())
    objects.put(f"{one.mirror.objects_of(one.folder)}a.json", b"[3]", None)
    folder = two.mirror.records.folder("train", KEY)
    assert folder
    two.mirror.follow(folder, load_record(folder))
    assert two.files() == {"b.json": "[2]"}
    assert "a.json has other content" in capsys.readouterr().err


def test_files_that_are_no_outputs_come_all_or_not_at_all(
    objects: Objects, machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = machines
    claim = one.claim(one.take())
    with claim.begin([]):
        claim.commit(one.record())
        (one.folder / "checkpoints").mkdir()
        one.write(**{"checkpoints/a": "a", "checkpoints/b": "b"})
        claim._uploads.send(is_growing=False)
    monkeypatch.setattr(mirror_module, "mirror_at", lambda path: two.mirror)
    folder = two.mirror.records.folder("train", KEY)
    assert folder
    objects.breaks_at = "/b"
    with pytest.raises(KeyboardInterrupt):
        fetch_spare(folder, "checkpoints")
    objects.breaks_at = ""
    fetch_spare(folder, "checkpoints")
    assert sorted(file.name for file in (folder / "checkpoints").iterdir()) == ["a", "b"]


def test_the_local_lock_is_that_of_the_key(objects: Objects, machines: list[Machine]) -> None:
    mirror, folder = machines[0].mirror, machines[0].folder
    other = folder.with_name(f"renamed-{KEY[:16]}")
    assert mirror.lock_name(folder) == mirror.lock_name(other)
    assert mirror.lease_name(folder) == mirror.lease_name(other)


def test_two_names_of_a_stage_share_one_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second process starts while the first checks the budget, so neither process has created a folder yet."""
    ran, admitted = list[str](), threading.Event()

    def admit(stage: Stage[Any]) -> None:
        admitted.set()
        time.sleep(0.5)

    def work(folder: Path, done: Done) -> Outcome[ToyResult]:
        ran.append(folder.name)
        return Outcome(ToyResult())

    stages = [single(work, name) for name in "ba"]  # the folder of the second stage would come first in a list
    with ThreadPoolExecutor() as threads:
        first = threads.submit(ensure, stages[0], Store(tmp_path, admit))
        assert admitted.wait(60)
        second = threads.submit(ensure, stages[1], Store(tmp_path, admit))
        records = [first.result().record, second.result().record]
    assert ran == [records[0].path.name]
    assert records[1].path == records[0].path
    assert "under another name" in capfd.readouterr().err


def test_the_address_of_the_store_must_be_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(ConfigError, match="is not a URL: localhost:9000"):
        mirror_folder("s3://tests/runs", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    cache = tmp_path / "dontstop-buckets" / "a" / "b"
    folder = mirror_folder("s3://tests/runs", str(cache))
    mirror = mirror_at(folder / "train" / "name-0123")
    assert mirror
    assert mirror.root == folder
