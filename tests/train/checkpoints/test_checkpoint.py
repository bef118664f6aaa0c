"""Tests saving and finding checkpoints on one rank. test_retain and test_engine test what checkpoints contain."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
import torch
import torch.distributed as dist

from adapt.method.base import Method
from adapt.runner.secret import Secret
from adapt.support.errors import CheckpointError, StorageError
from adapt.train.checkpoints import checkpoint
from adapt.train.checkpoints.checkpoint import METHOD_FILE, Checkpoints
from adapt.train.training_run import Progress
from tests.train.checkpoints.sealed import SEALING


class Engine:
    """Imitates an engine that writes one file, and fails like torch on a full disk if `fails` is set."""

    fails = False
    device = "cpu"

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        (folder / "state").write_text(str(progress["step"]))
        if self.fails:
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")

    def load(self, folder: Path) -> dict[str, Any]:
        return {"step": int((folder / "state").read_text())}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder for temporary files, and imitates a single rank whose uploads never finish."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(ray.train, "report", lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda _: None)
    monkeypatch.setattr(dist, "barrier", lambda group: None)
    monkeypatch.setattr(checkpoint, "among_hosts", lambda: None)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, own: found.__setitem__(0, own))
    return folder


def test_a_start_resumes_from_the_newest_whole_checkpoint_and_removes_the_rest(tmp_path: Path, disk: Path) -> None:
    run = Checkpoints(Engine(), Method(), tmp_path / "run", SEALING)
    for step in (5, 10, 15):
        run.save(Progress(step))
        (written,) = disk.iterdir()
        shutil.move(written, tmp_path / "run" / f"step-{step:08d}")
    (tmp_path / "run" / "step-00000015" / "state").unlink()
    assert run.load() == Progress(10)
    assert sorted(folder.name for folder in (tmp_path / "run").iterdir()) == ["step-00000005", "step-00000010"]


class Counting(Method):
    """Imitates a method with a state, which is one number."""

    count = 0.0

    def state(self) -> dict[str, Any]:
        return {"count": torch.tensor(self.count)}

    def load_state(self, state: Any) -> None:
        self.count = state["count"].item()


def test_the_state_of_a_method_is_saved_and_restored(tmp_path: Path, disk: Path) -> None:
    run = Checkpoints(Engine(), Counting(), tmp_path / "run", SEALING)
    for step in (5, 10):
        run.method.count = step / 10
        run.save(Progress(step))
        (written,) = disk.iterdir()
        shutil.move(written, tmp_path / "run" / f"step-{step:08d}")
    again = Checkpoints(Engine(), Counting(), tmp_path / "run", SEALING)
    assert again.load() == Progress(10)
    assert again.method.count == 1.0
    (tmp_path / "run" / "step-00000010" / METHOD_FILE).unlink()  # a checkpoint without the method's file is incomplete
    assert again.load() == Progress(5)
    assert again.method.count == 0.5


def test_leftovers_of_killed_ranks_are_removed_but_not_files_of_other_runs(tmp_path: Path, disk: Path) -> None:
    """Two runs of one configuration in different storage roots have the same name but separate files."""
    mine, other = (Checkpoints(Engine(), Method(), tmp_path / root / "1a1a1a1a", SEALING) for root in ("mine", "other"))
    mine.save(Progress(5))
    (left,) = disk.iterdir()
    other.save(Progress(5))
    assert mine.load() == Progress()
    assert not left.exists()
    assert len(list(disk.iterdir())) == 1


@pytest.mark.parametrize(("free", "kind"), [(4096, StorageError), (10**9, RuntimeError)])
def test_a_full_temporary_folder_is_named(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, free: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    engine = Engine()
    engine.fails = True
    with pytest.raises(kind, match=f"no space left for a checkpoint in {disk}" if kind is StorageError else "enforce"):
        Checkpoints(engine, Method(), tmp_path / "run", SEALING).save(Progress(5))


@pytest.mark.parametrize("name", ["state", METHOD_FILE])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(tmp_path: Path, disk: Path, name: str) -> None:
    run = Checkpoints(Engine(), Counting(), tmp_path / "run", SEALING)
    for step in (15, 25):
        run.save(Progress(step))
        (written,) = disk.iterdir()
        shutil.move(written, tmp_path / "run" / f"step-{step:08d}")
    newest = tmp_path / "run" / "step-00000025"
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"the checkpoint {newest} .*{name} has other content"):
        run.load()
    assert not newest.exists()
    assert run.load() == Progress(15)


def test_a_checkpoint_of_another_user_is_not_read(tmp_path: Path, disk: Path) -> None:
    theirs = replace(SEALING, secret=Secret(b"the key of somebody else"))
    Checkpoints(Engine(), Method(), tmp_path / "run", theirs).save(Progress(5))
    (written,) = disk.iterdir()
    shutil.move(written, tmp_path / "run" / "step-00000005")
    engine = Engine()
    engine.load = pytest.fail  # type: ignore[method-assign, assignment]
    with pytest.raises(CheckpointError, match="is not signed by this user's key"):
        Checkpoints(engine, Method(), tmp_path / "run", SEALING).load()


class Clock:
    """Imitates the module `time`. Each time the code sleeps, a second passes and a function of the test is called."""

    def __init__(self, happen: Callable[[float], None]) -> None:
        self.now, self.happen = 0.0, happen

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1
        self.happen(self.now)


def failing(run: Checkpoints, monkeypatch: pytest.MonkeyPatch, happen: Callable[[float], None]) -> float:
    """Raises an error in the step after a checkpoint. Returns the seconds until the error ends the rank."""
    monkeypatch.setattr(checkpoint, "time", clock := Clock(happen))
    run.save(Progress(5))
    with pytest.raises(RuntimeError, match="Connection closed by peer"), run.arriving():
        raise RuntimeError("Connection closed by peer")
    return clock.now


def test_a_failed_rank_does_not_wait_for_the_share_of_a_rank_that_is_gone(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Checkpoints(Engine(), Method(), tmp_path / "run", SEALING)
    assert failing(run, monkeypatch, lambda now: None) == pytest.approx(15, abs=2)
    assert run.load() == Progress()  # the incomplete checkpoint is not loaded


def test_a_failed_rank_waits_while_its_checkpoint_arrives(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, target = Checkpoints(Engine(), Method(), tmp_path / "run", SEALING), tmp_path / "run" / "step-00000005"

    def arrive(now: float) -> None:
        target.mkdir(parents=True, exist_ok=True)
        if now < 100:
            (target / "state").write_bytes(b"x" * int(now))  # imitates a slow upload
        elif now == 100:
            (written,) = disk.iterdir()
            shutil.copytree(written, target, dirs_exist_ok=True)

    assert failing(run, monkeypatch, arrive) == 100
    assert run.load() == Progress(5)
