"""Tests stages on a bucket: machines share only the bucket, and each has its own local copy."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.runner import Done, Outcome, Store, bucket_records, claim, ensure, lock, plan_stages
from adapt.runner.bucket import S3Bucket
from adapt.runner.claim import is_claimed
from adapt.runner.ensure import unfinished
from adapt.runner.mirror import Mirror, mirror_at
from adapt.runner.record import load_record
from adapt.support.errors import StageError, StorageError
from benchmarks.s3_server import BUCKET, Server
from tests.runner import toys
from tests.runner.toys import Toy, ToyResult, content, part, ran, single

Machine = Callable[[str], Store]


def mirror_of(store: Store) -> Mirror:
    assert store.mirror
    return store.mirror


def bucket_of(store: Store) -> S3Bucket:
    return mirror_of(store).bucket


def forget(store: Store) -> None:
    """Makes the next access to the records read the bucket instead of a cached list."""
    mirror_of(store).records._looked = -1e9


def test_a_folder_is_no_local_copy(tmp_path: Path) -> None:
    assert mirror_at(tmp_path / "runs") is None


def test_another_machine_finds_finished_stages_and_copies_their_files(machine: Machine, runs: Path) -> None:
    one, two = machine("one"), machine("two")
    first = ensure(toys.diamond(runs), one)
    assert ran(runs) == ["source", "left", "right", "top"]
    assert all(planned.record for planned in plan_stages(toys.diamond(runs), two))
    second = ensure(toys.diamond(runs), two)
    assert ran(runs) == []
    assert second.result == first.result
    assert content(second.path) == toys.expected("top")
    assert second.path.is_relative_to(two.root)
    inputs = second.record.inputs.values()
    assert all(Path(made["path"]).is_relative_to(two.root) for made in inputs)
    kinds = {record.stage for record in two.records()}
    assert kinds == {"source", "left", "right", "top"}


def test_the_bucket_has_readable_names_and_no_local_paths(machine: Machine, runs: Path, tmp_path: Path) -> None:
    one = machine("one")
    made = ensure(toys.diamond(runs), one)
    names = bucket_of(one).objects("")
    key = made.record.key[:16]
    begin = mirror_of(one).objects_of(made.path)
    assert begin.startswith(f"top/toy-{key}/")
    assert {f"{begin}part-0", f"records/top/{key}.json", f"logs/top/toy-{key}.jsonl"} <= names.keys()
    assert not [name for name in names if "/." in name]
    read = bucket_of(one).get(f"records/top/{key}.json")
    assert read
    assert str(tmp_path) not in read.body.decode()
    assert json.loads(read.body)["inputs"]["left"]["path"].startswith("s3://")


def test_a_record_that_was_deleted_from_the_bucket_runs_again(machine: Machine, runs: Path) -> None:
    one = machine("one")
    made = ensure(toys.diamond(runs), one)
    ran(runs)
    bucket_of(one).delete([f"records/top/{made.record.key[:16]}.json"])
    forget(one)
    ensure(toys.diamond(runs), one)
    assert ran(runs) == ["top"]


def test_an_interrupted_stage_goes_on_on_another_machine(machine: Machine) -> None:
    seen: list[list[str]] = []

    def act(folder: Path, done: Done) -> Outcome[ToyResult]:
        seen.append(sorted(file.name for file in folder.iterdir() if not file.name.startswith(".")))
        if len(seen) == 1:
            (folder / "begun").write_text("half of the work")
            raise OSError("the machine is gone")
        assert (folder / "begun").read_text() == "half of the work"
        return Outcome(ToyResult())

    with pytest.raises(OSError, match="gone"):
        ensure(single(act, name="first"), machine("one"))
    two = machine("two")
    made = ensure(single(act, name="renamed"), two)
    assert seen == [[], ["begun"]]
    assert made.path.name.startswith("first-")
    forget(two)
    assert not is_claimed(made.path)


def test_a_stage_whose_lease_was_damaged_goes_on_from_its_newest_files(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE_S", 0.3)
    monkeypatch.setattr(lock, "_POLL_S", 0.02)
    seen: list[str] = []

    def act(folder: Path, done: Done) -> Outcome[ToyResult]:
        seen.append((folder / "steps").read_text() if (folder / "steps").exists() else "")
        (folder / "steps").write_text(seen[-1] + "x")
        if len(seen) < 3:
            raise OSError("the machine is gone")
        return Outcome(ToyResult())

    for name in ("one", "two"):
        with pytest.raises(OSError, match="gone"):
            ensure(single(act, name="first"), machine(name))
        time.sleep(1.1)  # the store's times of objects are in seconds
    bucket = bucket_of(machine("one"))
    (lease,) = bucket.objects("leases/")
    bucket._client().put_object(Bucket=BUCKET, Key=bucket.address.key(lease), Body=b"x" * 100)
    made = ensure(single(act, name="renamed"), machine("three"))
    assert seen == ["", "x", "xx"]
    assert made.path.name.startswith("first-")


def killed_before_it_cleaned(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Finishes a stage in its second run, and leaves the bucket as if the process was killed after its commit."""
    begun: list[Path] = []

    def act(folder: Path, done: Done) -> Outcome[ToyResult]:
        begun.append(folder)
        (folder / "file").write_text("text")
        if len(begun) == 1:
            raise OSError("the machine is gone")
        return Outcome(ToyResult())

    stage = single(act)
    with pytest.raises(OSError, match="gone"):
        ensure(stage, machine("one"))
    with monkeypatch.context() as killed:
        killed.setattr(claim.BucketClaim, "clean", lambda *_: None)
        killed.setattr(lock.Lease, "release", lambda self: None)
        ensure(stage, machine("two"))
    monkeypatch.setattr(lock, "LEASE_S", -60.0)  # the lease has ended; negative, because ages are rounded to seconds
    monkeypatch.setattr(lock, "_POLL_S", 0.0)
    return stage


def runs_in(store: Store, stage: Toy) -> list[str]:
    """Returns the names of the runs of a stage that have files in the bucket."""
    return bucket_of(store).folders(f"toy/{store.folder_of(stage).name}/")


def test_the_next_job_deletes_files_that_a_killed_process_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, store = killed_before_it_cleaned(machine, monkeypatch), machine("three")
    assert len(runs_in(store, stage)) == 2
    made = ensure(stage, store)
    valid = mirror_of(store).objects_of(made.path)
    assert runs_in(store, stage) == [valid.split("/")[2]]
    assert (ensure(stage, machine("four")).path / "file").read_text() == "text"
    (lease,) = bucket_of(store).objects("leases/").values()
    assert not lock.is_abandoned(lease)


def test_a_process_that_waited_deletes_files_that_a_killed_process_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine("three")
    assert not list(store.records())
    mirror_of(store).records._looked = math.inf  # this machine does not learn that the stage is finished
    monkeypatch.setattr(Mirror, "clean_up", lambda self: None)
    stage = killed_before_it_cleaned(machine, monkeypatch)
    made = ensure(stage, store)
    assert runs_in(store, stage) == [mirror_of(store).objects_of(made.path).split("/")[2]]


def test_stages_that_no_machine_has_begun_list_no_folders_of_their_kind(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    monkeypatch.setattr(S3Bucket, "folders", lambda self, prefix: listed.append(prefix) or [])
    ensure(single(lambda folder, done: Outcome(ToyResult())), machine("one"))
    assert listed == []


def test_a_budget_knows_what_a_run_on_another_machine_has_spent(machine: Machine) -> None:
    def act(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / "held").write_text("2 hours")
        raise OSError("the machine is gone")

    with pytest.raises(OSError, match="gone"):
        ensure(single(act), machine("one"))
    two = machine("two")
    seen: list[str] = []
    two.admit = lambda stage: seen.append((two.folder_of(stage) / "held").read_text())
    with pytest.raises(OSError, match="gone"):
        ensure(single(act), two)
    assert seen == ["2 hours"]


def test_files_are_uploaded_and_deleted_while_the_stage_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_PAUSE_S", 0.05)
    one = machine("one")

    def stored(folder: Path) -> set[str]:
        return {name.rsplit("/", 1)[-1] for name in bucket_of(one).objects(f"toy/{folder.name}/")}

    def until(folder: Path, wanted: set[str]) -> None:
        end = time.monotonic() + 60
        while stored(folder) != wanted:
            assert time.monotonic() < end, stored(folder)
            time.sleep(0.05)

    def act(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "step-1").write_text("1")
        until(folder, {"step-1"})
        assert is_claimed(folder)
        (folder / "checkpoints" / "step-2").write_text("2")
        (folder / "checkpoints" / "step-1").unlink()
        until(folder, {"step-2"})
        (folder / "output").write_text("done")
        return Outcome(ToyResult())

    made = ensure(single(act), one)
    assert stored(made.path) == {"step-2", "output"}
    assert set(made.record.outputs) == {"output"}


def test_a_file_that_a_stranger_changed_is_named_when_it_is_read(machine: Machine, runs: Path) -> None:
    one, two = machine("one"), machine("two")
    top = toys.diamond(runs)
    ensure(top, one)
    record = one.record_of(part(top, "left"))
    assert record
    name = f"{mirror_of(one).objects_of(record.path)}part-1"
    was = bucket_of(one).get(name)
    assert was
    bucket_of(one).put(name, was.body.replace(b"left", b"LEFT"), None)
    bucket_of(one).delete([f"records/top/{top.key[:16]}.json"])
    ran(runs)
    with pytest.raises(StageError, match="part-1 has other content") as changed:
        ensure(top, two)
    assert ran(runs) == []
    assert f"records/left/{record.key[:16]}.json" in changed.value.fix
    bucket_of(one).put(name, was.body + b"more", None)
    # the sizes are compared without reading any file
    with pytest.raises(StageError, match=r"part-1 has \d+ of \d+ bytes"):
        unfinished([top], two)
    bucket_of(one).put(name, was.body, None)
    ensure(top, two)
    assert ran(runs) == ["top"]


def test_a_new_machine_reads_many_records_at_once(
    s3: Server, machine: Machine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "_MANY", 2)
    ensure(toys.diamond(runs), machine("one"))
    s3.faults()
    assert len(list(machine("two").records())) == 4
    assert s3.requests()["GET"] == 2  # one request for the list and one request for the pack
    bucket_of(machine("two")).delete(["packs/records"])
    assert len(list(machine("three").records())) == 4  # this reads the records one by one, and packs them
    s3.faults()
    assert len(list(machine("four").records())) == 4
    assert s3.requests()["GET"] == 2


def test_packed_records_are_written_to_disk_when_their_stages_are_used(
    machine: Machine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "_MANY", 2)
    top = toys.diamond(runs)
    ensure(top, machine("one"))
    two = machine("two")
    assert not any(record.path.exists() for record in two.records())
    ran(runs)
    ensure(top, two)
    assert ran(runs) == []
    record = two.record_of(top)
    assert record
    assert load_record(record.path) == record
    assert record in list(two.records())
    bucket_of(two).delete([f"records/top/{top.key[:16]}.json"])
    forget(two)
    assert record.key not in [each.key for each in two.records()]
    assert load_record(record.path) is None


def test_a_packed_record_replaces_the_files_of_an_interrupted_run(
    machine: Machine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the files would count as those of the finished run, and the local copy could not be made smaller."""
    monkeypatch.setattr(bucket_records, "_MANY", 2)
    one, two = machine("one"), machine("two")
    top = toys.diamond(runs)
    ensure(top, one)
    folder = two.root / "top" / one.folder_of(top).name
    folder.mkdir(parents=True)
    (folder / "output").write_text("x" * 100)
    assert len(list(two.records())) == 4
    assert [file.name for file in folder.iterdir()] == ["stage.json"]
    bucket_records.evict(two.root, [record.path for record in two.records()], 0, two.root)
    assert len(list(two.records())) == 4


def test_a_machine_that_knows_packed_records_keeps_them_in_the_pack(
    s3: Server, machine: Machine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "_MANY", 2)
    ensure(toys.diamond(runs), machine("one"))
    two = machine("two")
    assert len(list(two.records())) == 4  # read from the pack
    monkeypatch.setattr(bucket_records, "_MANY", 100)
    for number in range(2):  # these records are not packed
        ensure(single(lambda folder, done: Outcome(ToyResult()), number=number), machine("three"))
    monkeypatch.setattr(bucket_records, "_MANY", 2)
    forget(two)
    assert len(list(two.records())) == 6  # reads the two new records one by one, and packs them
    s3.faults()
    assert len(list(machine("four").records())) == 6
    assert s3.requests()["GET"] == 2


def test_a_record_that_a_stranger_changed_is_named(
    machine: Machine, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = machine("one"), machine("two")
    top = toys.diamond(runs)
    ensure(top, one)
    name = f"records/top/{top.key[:16]}.json"
    was = bucket_of(one).get(name)
    assert was
    key = f"{bucket_of(one).address.prefix}/{name}"
    client = bucket_of(one)._client()
    client.put_object(Bucket="tests", Key=key, Body=was.body.replace(b'"lines": 32', b'"lines": 33'))
    with pytest.raises(StageError, match="was changed by a program other than dontstop"):
        ensure(top, two)
    assert len(list(two.records())) == 3
    assert f"/{name} was changed" in capsys.readouterr().err
    bucket_of(one).delete([name])
    ran(runs)
    assert ensure(top, machine("three")).result.lines == 32
    assert ran(runs) == ["top"]


def test_files_that_are_not_used_leave_a_local_copy_that_is_too_large(machine: Machine, runs: Path) -> None:
    one, two = machine("one"), machine("two")
    top = toys.diamond(runs)
    ensure(top, one)
    bucket_of(one).delete([f"records/top/{top.key[:16]}.json"])
    mirror_of(two).cache_gb = 1e-9
    ran(runs)
    ensure(top, two)
    assert ran(runs) == ["top"]  # the inputs were not removed while the stage ran
    made = two.record_of(top)
    assert made
    mirror_of(two).has_grown(made)
    for name in ("left", "right"):
        record = two.record_of(part(top, name))
        assert record
        assert not (record.path / "part-0").exists()
        mirror_of(two).bring(record)
        assert (record.path / "part-0").exists()


def test_a_run_that_lost_its_lease_changes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first machine is suspended for longer than its lease, while the second machine runs the whole stage."""
    monkeypatch.setattr(lock, "LEASE_S", 0.3)
    monkeypatch.setattr(lock, "_RENEW_S", 1000.0)
    monkeypatch.setattr(lock, "_POLL_S", 0.02)
    monkeypatch.setattr(claim, "_PAUSE_S", 1000.0)
    one, two = machine("one"), machine("two")

    def second(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / "output").write_text("of two")
        return Outcome(ToyResult(2))

    def first(folder: Path, done: Done) -> Outcome[ToyResult]:
        (folder / "output").write_text("of one")
        ensure(single(second), two)
        return Outcome(ToyResult(1))

    with pytest.raises(StorageError, match="was lost"):
        ensure(single(first), one)
    made = ensure(single(first), machine("three"))
    assert made.result.lines == 2
    assert (made.path / "output").read_text() == "of two"
    made = ensure(single(first), one)
    assert (made.result.lines, (made.path / "output").read_text()) == (2, "of two")


@pytest.mark.parametrize("kind", ["slow down", "cut request", "lose answer"])
def test_a_chain_is_finished_on_a_store_that_fails_every_third_request(
    machine: Machine, runs: Path, s3: Server, kind: str
) -> None:
    s3.faults(kind=kind, every=3)
    made = ensure(toys.diamond(runs), machine("one"))
    assert ran(runs) == ["source", "left", "right", "top"]
    s3.faults()
    there = ensure(toys.diamond(runs), machine("two"))
    assert content(there.path) == content(made.path) == toys.expected("top")


@pytest.mark.heavy
def test_two_chains_that_race_run_each_stage_once(machine: Machine, runs: Path) -> None:
    started = [start(machine(name), runs, 0.05) for name in ("one", "two")]
    for process in started:
        assert process.wait() == 0
    assert sorted(ran(runs)) == ["left", "right", "source", "top"]
    assert content(ensure(toys.diamond(runs), machine("three")).path) == toys.expected("top")


@pytest.mark.heavy
def test_a_killed_chain_goes_on_where_it_was(machine: Machine, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL kills a process while it writes. Another machine waits until the lease ends and finishes the chain."""
    assert start(machine("one"), runs, 0.0, kill_at=9).wait() == -9
    monkeypatch.setattr(lock, "LEASE_S", 1.0)
    before = ran(runs)
    there = ensure(toys.diamond(runs), machine("two"))
    assert content(there.path) == toys.expected("top")
    after = ran(runs)
    assert len(before) + len(after) <= len(toys.NAMES) + 1  # only the stage that was interrupted ran twice


def start(store: Store, runs: Path, pause_s: float, kill_at: int = 0) -> "subprocess.Popen[str]":
    """Starts a process that runs the stages of a diamond."""
    given = [str(store.root), str(runs), str(pause_s), str(kill_at), "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runner.toys", *given], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.close()
    return process
