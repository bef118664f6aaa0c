"""Tests that seals show who wrote a checkpoint and whether its files have changed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.runner.secret import Secret
from adapt.support.errors import StorageError
from adapt.train.checkpoints.stored_checkpoints import (
    Seal,
    checkpoints,
    content_fault,
    digests_of,
    folder_name,
    forgery_in,
    is_whole,
    mend_run,
    newest_whole,
    seal_files,
)
from tests.train.checkpoints.sealed import SEALING, seal


def checkpoint(run: Path, step: int, world: int = 2) -> Path:
    folder = run / folder_name(step)
    for rank in range(world):
        share = run / f"share-{rank}"
        (share / "state").mkdir(parents=True)
        (share / "state" / f"optimizer-{rank}.pt").write_bytes(b"moments" * (rank + 1))
        seal(share, rank, world, folder.name)
        shutil.copytree(share, folder, dirs_exist_ok=True)
        shutil.rmtree(share)
    return folder


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def unsigned(folder: Path) -> None:
    """Replaces the seals with unsigned seals, as earlier versions wrote them."""
    for file in seal_files(folder):
        file.write_text(json.dumps({name: size for name, (size, _) in Seal.read(file).files.items()}))


def test_an_unchanged_checkpoint_of_the_run_is_accepted(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 10)
    assert forgery_in(folder, SEALING) is None
    assert sorted(digests_of(folder)) == ["state/optimizer-0.pt", "state/optimizer-1.pt"]
    assert content_fault(folder, digests_of(folder)) is None


@pytest.mark.parametrize("file", ["state/optimizer-0.pt", "state/optimizer-1.pt"])
def test_a_flipped_bit_is_noticed_in_the_file_of_any_rank(tmp_path: Path, file: str) -> None:
    folder = checkpoint(tmp_path, 10)
    flip(folder / file)
    assert is_whole(folder)
    assert content_fault(folder, digests_of(folder)) == f"{file} has other content"


def resealed(folder: Path) -> None:
    """Changes a file, and replaces the seals with seals that are signed with another key."""
    flip(folder / "state" / "optimizer-0.pt")
    for rank in range(2):
        seal(folder, rank, 2, sealing=replace(SEALING, secret=Secret(b"another key")))


FORGERIES: dict[str, Callable[[Path], object]] = {
    "a seal by another key": resealed,
    "a changed seal": lambda c: (c / "seal-1-of-2.json").write_text(
        (c / "seal-1-of-2.json").read_text().replace('"sha256', '"').replace("0", "1")
    ),
    "no signature": unsigned,
    "a file beside": lambda c: (c / "state" / "mp_rank_01_model_states.pt").write_bytes(b"pickle"),
    "a link beside": lambda c: (c / "state" / "more.pt").symlink_to("/nowhere"),
    "a link in place of the folder": lambda c: (
        (c / "state").rename(c.parent / "x") and (c / "state").symlink_to("../x")
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_files_of_another_user_are_refused(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path, 10)
    FORGERIES[name](folder)
    assert forgery_in(folder, SEALING)


def test_a_checkpoint_of_another_run_or_step_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 10)
    assert forgery_in(folder, replace(SEALING, run="other/1a1a1a1a"))
    older = folder.rename(tmp_path / folder_name(20))
    assert is_whole(older)
    assert forgery_in(older, SEALING)


def test_an_unsigned_checkpoint_is_refused_and_not_removed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 10)
    unsigned(folder)
    assert is_whole(folder)
    assert digests_of(folder) == {}
    with pytest.raises(StorageError, match=r"seal-0-of-2\.json is not signed by this user's key") as caught:
        mend_run(tmp_path, SEALING)
    assert f"delete {tmp_path} to begin again" in caught.value.fix
    assert is_whole(folder)


@pytest.mark.parametrize(
    "content", ["[]", "1", "null", '{"files": {"a": 1}}', '{"files": {}}', "[" * 100_000, '{"a": []}']
)
def test_an_unreadable_seal_makes_a_checkpoint_incomplete(tmp_path: Path, content: str) -> None:
    folder = checkpoint(tmp_path, 10)
    (folder / "seal-1-of-2.json").write_text(content)
    assert not is_whole(folder)


def test_forged_checkpoints_are_removed_by_name_where_others_are_the_runs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    resealed(tmp_path / folder_name(30))
    mend_run(tmp_path, SEALING)
    assert newest_whole(tmp_path) == tmp_path / folder_name(20)
    assert f"the checkpoint {tmp_path / folder_name(30)} is not one that this job wrote" in capsys.readouterr().err


def test_a_run_whose_key_is_lost_keeps_its_checkpoints_and_is_refused(tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint(tmp_path, step)
    other = replace(SEALING, secret=Secret(b"another key"))
    with pytest.raises(StorageError, match=f"the checkpoint {tmp_path / folder_name(20)} is not one that") as caught:
        mend_run(tmp_path, other)
    assert "DONTSTOP_KEY" in caught.value.fix
    assert len(checkpoints(tmp_path)) == 2
