"""The content of finished stages' files: digests are kept when they are written, and compared before they are read."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from adapt.errors import StageError
from adapt.runner import Done, Outcome, Record, Store, ensure, hashing, outputs, plan_stages
from adapt.runner.digest import Digests
from tests.runner import toys
from tests.runner.toys import ToyResult, part, ran, single


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What this process knows of files is forgotten, as by a new one."""
    known: dict[str, str] = {}
    monkeypatch.setattr(outputs, "_checked", known)
    return known


def flip(file: Path) -> None:
    """Changes a bit, and sets the modification time back."""
    times = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x04
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_record_holds_the_digest_of_each_file(store: Store) -> None:
    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        for name in ("a", "deep/b", "checkpoints/spare", ".hidden"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        return Outcome(ToyResult())

    record = ensure(single(run), store).record
    assert record.digests == {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "deep/b")}
    assert record.digests.keys() == record.outputs.keys()


@pytest.mark.parametrize("same_process", [True, False])
def test_a_flipped_bit_stops_what_reads_the_file_before_it_runs(
    store: Store, runs: Path, new_process: dict[str, str], same_process: bool
) -> None:
    top = toys.diamond(runs)
    left = part(top, "left")
    record = ensure(left, store).record
    ran(runs)
    flip(record.path / "part-1")
    if not same_process:
        new_process.clear()
    said = f"{record.path} was finished, but its files have changed: part-1 has other content"
    with pytest.raises(StageError, match=said) as caught:
        ensure(top, store)
    assert f"delete {record.path / 'stage.json'}" in caught.value.fix
    assert "top" not in ran(runs)
    (record.path / "stage.json").unlink()  # the fix that the message names
    assert toys.content(ensure(top, store).path) == toys.expected("top")


def test_every_file_is_read_once_per_process(
    store: Store, runs: Path, new_process: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = hashing.sha256_of
    monkeypatch.setattr(hashing, "sha256_of", lambda file: read.append(file) or real(file))
    source = part(part(toys.diamond(runs), "left"), "source")
    record = ensure(source, store).record
    files = sorted(record.path / name for name in record.outputs)
    assert sorted(read) == files  # when they were written
    read.clear()
    outputs.check_content(record)
    assert read == []
    new_process.clear()
    for _ in range(2):
        outputs.check_content(record)
    assert sorted(read) == files


def test_a_plan_and_a_finished_job_read_no_content(store: Store, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ensure(toys.diamond(runs), store).record
    monkeypatch.setattr(hashing, "sha256_of", pytest.fail)
    assert ensure(toys.diamond(runs), store).record == record
    assert all(line.record for line in plan_stages(toys.diamond(runs), store))


def without_digests(record: Record) -> None:
    """As earlier versions wrote them."""
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


def test_a_file_of_a_stage_that_a_configuration_names_is_compared_with_its_record(store: Store, runs: Path) -> None:
    """As a model that was exported, or text that was selected."""
    record = ensure(part(part(toys.diamond(runs), "left"), "source"), store).record
    file = record.path / "part-1"
    assert Digests().of(file) == record.digests["part-1"]
    flip(file)
    with pytest.raises(
        StageError, match=f"{file} has other content than stage {record.path.parent.name} wrote"
    ) as caught:
        Digests().of(file)
    assert "name a copy of its folder without stage.json" in caught.value.fix
    without_digests(record)
    assert Digests().of(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_file_beside_those_of_a_stage_is_nobodys(store: Store, runs: Path) -> None:
    record = ensure(part(part(toys.diamond(runs), "left"), "source"), store).record
    (record.path / "mine").write_text("text")
    (record.path / "README.md").write_text("edited")
    assert Digests().of_all([record.path / "mine", record.path / "README.md"])


def test_many_gigabytes_are_announced(
    store: Store,
    runs: Path,
    new_process: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = ensure(part(part(toys.diamond(runs), "left"), "source"), store).record
    new_process.clear()
    monkeypatch.setattr(outputs, "SAID_BYTES", 10)
    outputs.check_content(record)
    assert f"checking 0 GB of {record.path.parent.name}/{record.path.name}" in capsys.readouterr().err
