"""The record: committed whole or not at all, and read back as it was."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from adapt.errors import StageError, StorageError
from adapt.runner.files import ASIDE, remove_asides, storage_errors, write_atomically
from adapt.runner.record import Record, load_record


def record(folder: Path, **changed: Any) -> Record:
    values: dict[str, Any] = {
        "stage": "train",
        "name": "demo",
        "key": "ab" * 32,
        "version": 1,
        "what": {"training": {"learning_rate": 5e-4, "max_steps": None}},
        "inputs": {"corpus": {"stage": "prepare", "key": "cd" * 32, "path": "/runs/prepare/demo-cdcdcdcd"}},
        "metrics": {"loss": 2.5, "dropped": {"short": 3}},
        "cost": {"seconds": 1.25},
        "resources": {"workers": 2},
        "outputs": {"model/config.json": 7},
        "packages": {"torch": "2.11"},
        "started_at": "2026-01-01T00:00:00+00:00",
        "path": folder,
    }
    return Record(**{**values, **changed})


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    saved = record(tmp_path / "deep" / "folder")
    saved.save()
    loaded = load_record(saved.path)
    assert loaded == saved
    assert loaded.path == saved.path


def test_a_record_knows_where_it_is_now(tmp_path: Path) -> None:
    record(tmp_path / "old").save()
    (tmp_path / "old").rename(tmp_path / "new")
    moved = load_record(tmp_path / "new")
    assert moved is not None
    assert moved.path == tmp_path / "new"
    assert str(tmp_path) not in (tmp_path / "new" / "stage.json").read_text()


def test_who_may_look_into_the_folder_may_read_the_file(tmp_path: Path) -> None:
    for folder, file in ((0o755, 0o644), (0o2775, 0o664), (0o1777, 0o644), (0o750, 0o640), (0o700, 0o600)):
        tmp_path.chmod(folder)
        record(tmp_path).save()
        assert (tmp_path / "stage.json").stat().st_mode & 0o777 == file


def test_a_folder_without_record_is_unfinished(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("half")
    assert load_record(tmp_path) is None
    assert load_record(tmp_path / "missing") is None


def valid(folder: Path) -> dict[str, Any]:
    record(folder).save()
    return json.loads((folder / "stage.json").read_text())  # type: ignore[no-any-return]


UNREADABLE = [b"", b"{", b"[]", b"{}", b"null", b"7", b"\xff\xfe", b'{"stage": "train"}', b"[" * 100_000]


@pytest.mark.parametrize("content", UNREADABLE)
def test_an_unreadable_record_names_its_folder(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stage.json").write_bytes(content)
    with pytest.raises(StageError, match=r"cannot be read|is damaged") as caught:
        load_record(tmp_path)
    assert str(tmp_path / "stage.json") in caught.value.what
    assert f"delete {tmp_path / 'stage.json'}: the stage runs again" in caught.value.fix


def test_a_record_with_other_fields_is_unreadable(tmp_path: Path) -> None:
    values = valid(tmp_path)
    others = {"metrics": [], "key": 7, "version": "1", "inputs": {"corpus": {"key": "1a"}}, "outputs": {"a": "7"}}
    wrongs = [{**values, name: value} for name, value in others.items()]
    for wrong in (*wrongs, {**values, "novelty": 1}, {key: values[key] for key in values if key != "key"}):
        (tmp_path / "stage.json").write_text(json.dumps(wrong))
        with pytest.raises(StageError, match=str(tmp_path)):
            load_record(tmp_path)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(StageError, match=str(tmp_path / "folder")):
        load_record(tmp_path / "folder")


# Every refusal of the operating system, at every call that can meet it.
REFUSALS = [
    (errno.ENOSPC, "no space left while writing"),
    (errno.EDQUOT, "no space left while writing"),
    (errno.EACCES, "cannot write"),
    (errno.EPERM, "cannot write"),
    (errno.EROFS, "cannot write"),
]


@pytest.mark.parametrize("call", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize(("code", "message"), REFUSALS)
def test_a_refused_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, message: str
) -> None:
    write_atomically(tmp_path / "stage.json", "old")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError, match=message) as caught:
        write_atomically(tmp_path / "stage.json", "new")
    assert str(tmp_path / "stage.json") in caught.value.what
    assert "storage.root" in caught.value.fix
    assert [file.name for file in tmp_path.iterdir()] == ["stage.json"]
    assert (tmp_path / "stage.json").read_text() == "old"


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "stage.json", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def note(call: str) -> None:
        real = getattr(os, call)

        def noted(*args: Any) -> None:
            calls.append((call, (tmp_path / "a").exists()))
            real(*args)

        monkeypatch.setattr(os, call, noted)

    note("fsync")
    note("replace")
    write_atomically(tmp_path / "a", "text")
    assert calls == [("fsync", False), ("replace", False)]
    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize("place", ["file/stage.json", "file/deep/stage.json"])
def test_a_file_where_a_folder_should_be_is_a_storage_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / place}"):
        write_atomically(tmp_path / place, "")


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "gone").read_text()


def test_leftovers_of_killed_writes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    kept = [tmp_path / "stage.json", tmp_path / ".hidden", tmp_path / f"notes{ASIDE}", tmp_path / "deep" / "shard"]
    for file in (*kept, tmp_path / f".stage.json.x{ASIDE}", tmp_path / "deep" / f".shard.y{ASIDE}"):
        file.write_text("")
    remove_asides(tmp_path)
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == sorted(kept)


@pytest.mark.parametrize("variable", ["HOME", "TMPDIR"])
def test_a_refusal_elsewhere_does_not_blame_the_storage(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    refused = tmp_path / "mine" / ".cache"
    for code, words in ((errno.EROFS, "cannot read or write"), (errno.ENOSPC, "no space left while writing")):
        with pytest.raises(StorageError) as caught, storage_errors(tmp_path / "runs" / "train"):
            raise OSError(code, os.strerror(code), str(refused))
        assert f"{words} {refused}" in caught.value.what
        assert f"set {variable} to" in caught.value.fix
        assert "storage.root" not in str(caught.value)


@pytest.mark.parametrize("named", ["runs", "runs/train/a", "runs/.train.lock", None])
def test_a_refusal_at_what_is_written_blames_the_storage(tmp_path: Path, named: str | None) -> None:
    with pytest.raises(StorageError, match=r"point storage\.root"), storage_errors(tmp_path / "runs" / "train"):
        raise PermissionError(errno.EACCES, "denied", named and str(tmp_path / named))
