"""Tests that a checkpoint's files show whether the checkpoint is complete, no matter when its run was killed."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.train.checkpoints.stored_checkpoints import (
    SNAPSHOT,
    checkpoints,
    folder_name,
    is_whole,
    mend_run,
    newest_whole,
    prune,
    remove_torn,
)
from tests.train.checkpoints.sealed import SEALING, seal

WORLD = 2


def share(folder: Path, rank: int, world: int, name: str = "") -> Path:
    """Writes a rank's share of a checkpoint to a separate folder, and returns the folder."""
    (folder / "state").mkdir(parents=True)
    (folder / "state" / f"optimizer-{rank}.pt").write_bytes(b"moments" * (rank + 1))
    if rank == 0:
        (folder / "state" / "model.pt").write_bytes(b"weights")
        (folder / "state.json").write_text("{}")
    seal(folder, rank, world, name)
    return folder


def checkpoint(run: Path, step: int, world: int = WORLD) -> Path:
    """Writes a whole checkpoint from the shares of all ranks, and returns its folder."""
    for rank in range(world):
        part = share(run / ".local" / f"{step}-{rank}", rank, world, folder_name(step))
        shutil.copytree(part, run / folder_name(step), dirs_exist_ok=True)
    return run / folder_name(step)


def steps(run: Path) -> list[int]:
    return [int(folder.name.rsplit("-", 1)[1]) for folder in checkpoints(run)]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty_seals(folder: Path) -> None:
    for each in folder.glob("seal-*"):
        each.write_text("")


def other_world(folder: Path) -> None:
    """Adds the seal of a single-rank run to a checkpoint that two ranks wrote."""
    (folder / "seal-0-of-1.json").write_text("{}")


TORN: dict[str, Callable[[Path], object]] = {
    "nothing but the folder": lambda c: [shutil.rmtree(c), c.mkdir()],
    "no model": lambda c: (c / "state" / "model.pt").unlink(),
    "no file of the other rank": lambda c: (c / "state" / "optimizer-1.pt").unlink(),
    "no state": lambda c: (c / "state.json").unlink(),
    "no subfolder": lambda c: shutil.rmtree(c / "state"),
    "no seal of the first rank": lambda c: (c / "seal-0-of-2.json").unlink(),
    "no seal of the other rank": lambda c: (c / "seal-1-of-2.json").unlink(),
    "a shortened model": lambda c: cut(c / "state" / "model.pt"),
    "a shortened file of the other rank": lambda c: cut(c / "state" / "optimizer-1.pt"),
    "an empty file": lambda c: (c / "state" / "model.pt").write_bytes(b""),
    "a longer file": lambda c: grow(c / "state" / "model.pt"),
    "a torn seal": lambda c: cut(c / "seal-1-of-2.json"),
    "empty seals": empty_seals,
    "seals of two runs": other_world,
}


def test_a_checkpoint_is_whole_when_the_last_rank_has_sealed_its_share(tmp_path: Path) -> None:
    gathered = tmp_path / "step"
    for rank in range(3):
        assert not is_whole(gathered)
        shutil.copytree(share(tmp_path / str(rank), rank, 3), gathered, dirs_exist_ok=True)
    assert is_whole(gathered)
    assert is_whole(checkpoint(tmp_path, 1, world=1))


def test_a_seal_lists_what_its_rank_has_written(tmp_path: Path) -> None:
    share(tmp_path / "rank", 1, 2)
    listed = json.loads((tmp_path / "rank" / "seal-1-of-2.json").read_text())["files"]
    assert listed == {"state/optimizer-1.pt": [14, hashlib.sha256(b"momentsmoments").hexdigest()]}


@pytest.mark.parametrize("damage", TORN)
def test_an_incomplete_checkpoint_is_skipped_and_removed(tmp_path: Path, damage: str) -> None:
    for step in (9, 10, 200):
        checkpoint(tmp_path, step)
    assert newest_whole(tmp_path) == tmp_path / folder_name(200)
    TORN[damage](tmp_path / folder_name(200))
    assert not is_whole(tmp_path / folder_name(200))
    assert newest_whole(tmp_path) == tmp_path / folder_name(10)
    remove_torn(tmp_path)
    assert steps(tmp_path) == [9, 10]


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    for run in (tmp_path, tmp_path / "not there"):
        mend_run(run, SEALING)
        prune(run, 2)
        assert checkpoints(run) == []
        assert newest_whole(run) is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1000, 5, 40, 30):
        checkpoint(tmp_path, step)
    prune(tmp_path, 5)
    assert steps(tmp_path) == [5, 30, 40, 1000]
    prune(tmp_path, 2)
    assert steps(tmp_path) == [40, 1000]


# --- the list of checkpoints that Ray Train stores


def listing(*steps: int) -> str:
    """Returns a list of checkpoints in the format of Ray Train."""
    results = [{"version": 0, "checkpoint_dir_name": folder_name(step), "metrics": {"step": step}} for step in steps]
    return json.dumps(
        {"ray_version": "2.60.0", "checkpoint_results": results, "latest_checkpoint_result": (results or [None])[-1]}
    )


GOOD = {
    "of all": listing(10, 20),
    "behind the files": listing(10),
    "of none": listing(),
}
BAD = {
    "empty": "",
    "cut short": listing(10, 20)[:-30],
    "zeros, as after a power cut": "\0" * 400,
    "no list": "[1, 2]",
    "without the names": '{"checkpoint_results": [{"version": 0}]}',
    "without the results": '{"ray_version": "2.60.0"}',
    "results that are none": '{"checkpoint_results": null}',
    "of a checkpoint that is not there": listing(10, 30),
    "of a torn checkpoint": listing(20, 40),
}


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_a_list_that_would_stop_ray_train_is_removed(tmp_path: Path, name: str) -> None:
    text, kept = {**GOOD, **BAD}[name], name in GOOD
    for step in (10, 20, 40):
        checkpoint(tmp_path, step)
    (tmp_path / folder_name(40) / "seal-1-of-2.json").unlink()
    (tmp_path / SNAPSHOT).write_text(text)
    mend_run(tmp_path, SEALING)
    assert (tmp_path / SNAPSHOT).exists() is kept
    if kept:
        assert (tmp_path / SNAPSHOT).read_text() == text
    assert steps(tmp_path) == [10, 20]


def test_a_list_that_is_not_text_is_removed(tmp_path: Path) -> None:
    (tmp_path / SNAPSHOT).write_bytes(b"\xff\xfe\0{")
    mend_run(tmp_path, SEALING)
    assert not (tmp_path / SNAPSHOT).exists()
