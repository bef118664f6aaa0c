"""Files of finished stages: on disk before the record says so, and compared with it before they are used."""

import errno
import os
import time
from pathlib import Path

import pytest

from adapt.corpus.screening.screen import REJECTS
from adapt.corpus.streaming.online import INDEX_FILE
from adapt.errors import StageError, StorageError
from adapt.runner import Done, Outcome, Record, Store, ensure, ensure_all, plan_stages
from adapt.runner.outputs import SPARE, check_outputs, settle
from adapt.train.checkpoints.branch import BRANCHES
from adapt.train.job import CHECKPOINTS
from tests.runner import toys
from tests.runner.toys import ToyResult, content, ran, single, states


@pytest.mark.parametrize(("damaged", "other"), [("left", "right"), ("right", "left")])
def test_files_that_are_gone_stop_what_needs_them_before_anything_runs(
    store: Store, runs: Path, damaged: str, other: str
) -> None:
    top = toys.diamond(runs)
    record = ensure(top.inputs[damaged], store).record
    ran(runs)
    (record.path / "part-1").unlink()
    for look in (ensure, plan_stages, lambda stage, store: ensure_all([stage], store, None, 2)):
        with pytest.raises(
            StageError, match=f"{record.path} was finished, but its files have changed: part-1 is missing"
        ):
            look(top, store)
    assert ran(runs) == []
    (record.path / "stage.json").unlink()  # the fix that the message names
    assert content(ensure(top, store).path) == toys.expected("top")
    assert sorted(ran(runs)) == sorted([damaged, other, "top"])
    assert content(record.path) == toys.expected(damaged)


def test_files_that_nothing_needs_any_more_may_go(store: Store, runs: Path) -> None:
    record = ensure(toys.diamond(runs), store).record
    ran(runs)
    (Path(record.inputs["left"]["path"]) / "part-1").unlink()
    assert ensure(toys.diamond(runs), store).record == record
    assert states(toys.diamond(runs), store) == dict.fromkeys(toys.NAMES, "done")
    assert ran(runs) == []


SPARED = ("checkpoints/step-1/weights", "branch/step-1/weights", "tensorboard/events", "items.txt", "README.md")


@pytest.mark.parametrize("name", [*SPARED, ".training.lock", "deep/.half.4711"])
def test_what_is_to_resume_from_or_for_people_may_be_deleted_or_edited(store: Store, name: str) -> None:
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


def test_names_of_what_may_be_deleted_are_those_that_stages_use() -> None:
    assert {f"{CHECKPOINTS}/", f"{BRANCHES}/", f"{REJECTS}/", INDEX_FILE} < set(SPARE)


def test_everything_is_on_disk_before_the_record_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_disk_that_is_full_when_files_are_synced_leaves_the_stage_unfinished(
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


def test_a_file_system_that_cannot_sync_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    (tmp_path / "a").write_text("text")
    assert settle(tmp_path) == {"a": 4}


def test_looking_at_a_stage_of_many_files_is_quick(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number}").touch()
    record = Record("toy", "toy", "", 1, {}, {}, {}, {}, {}, {f"{n}": 0 for n in range(2000)}, {}, "", tmp_path)
    start = time.process_time()  # also where the machine is busy
    check_outputs(record)
    assert time.process_time() - start < 0.5  # some 10 ms
