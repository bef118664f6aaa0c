"""Tests the secret key of a user in a storage root."""

import os
import threading
from pathlib import Path

import pytest

from adapt.runner.lock import locked
from adapt.runner.secret import VARIABLE, Secret, secret_of
from adapt.support.errors import ConfigError, StorageError


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def key_file(root: Path) -> Path:
    return root / f".key-{os.getuid()}"


def test_a_key_is_created_once_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    first = secret_of(tmp_path)
    assert key_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert secret_of(tmp_path) == first
    (tmp_path / "other").mkdir()
    assert secret_of(tmp_path / "other").key != first.key
    assert first.key.decode() not in repr(first)


def test_the_rest_of_a_process_that_was_killed_while_it_made_the_key_is_removed(tmp_path: Path) -> None:
    rest, other = (tmp_path / f".{name}.x.aside" for name in (key_file(tmp_path).name, "report.html"))
    for file in (rest, other):
        file.touch()
    secret_of(tmp_path)
    assert not rest.exists()
    assert other.exists()


def test_the_key_of_a_bucket_outlives_its_local_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    copy, earlier = (tmp_path / "dontstop-buckets" / "aws" / name for name in ("one", "two"))
    for root in (copy, earlier):
        root.mkdir(parents=True)
    first = secret_of(copy)
    assert list(copy.iterdir()) == []
    assert (tmp_path / "config" / "dontstop").stat().st_mode & 0o777 == 0o700
    key_file(earlier).write_text("0123456789abcdef")  # earlier versions created the key in the local copy
    assert secret_of(earlier) == Secret(b"0123456789abcdef")
    assert secret_of(copy) == first
    (tmp_path / "config" / "dontstop" / "bucket-key").unlink()
    assert secret_of(copy) != first


def test_a_user_whose_configuration_cannot_be_written_has_the_key_in_the_local_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    copy = tmp_path / "dontstop-buckets" / "aws" / "one"
    copy.mkdir(parents=True)
    first = secret_of(copy)
    assert key_file(copy).exists()
    assert secret_of(copy) == first


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    found: list[Secret] = []
    threads = [threading.Thread(target=lambda: found.append(secret_of(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len({each.key for each in found}) == 1


def test_an_existing_key_is_read_while_another_process_holds_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = secret_of(tmp_path)
    with locked(key_file(tmp_path)):
        assert secret_of(tmp_path) == first
    assert capsys.readouterr().err == ""


def test_only_signed_texts_are_recognized() -> None:
    one, other = Secret(b"a" * 32), Secret(b"b" * 32)
    assert one.has_signed("text", one.sign("text"))
    assert not one.has_signed("text", other.sign("text"))
    assert not one.has_signed("texts", one.sign("text"))


def test_the_environment_replaces_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0123456789abcdef")
    assert secret_of(tmp_path) == Secret(b"0123456789abcdef")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(ConfigError, match=f"{VARIABLE} has 5 characters"):
        secret_of(tmp_path)


def test_a_key_file_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    first = secret_of(tmp_path)
    key_file(tmp_path).chmod(0o644)
    assert secret_of(tmp_path).key == first.key
    assert key_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_file_system_without_permissions_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret_of(tmp_path)
    key_file(tmp_path).chmod(0o644)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)
    secret_of(tmp_path)
    assert f"other users can read {key_file(tmp_path)}" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    secret_of(tmp_path)
    os.chown(key_file(tmp_path), 12345, -1)
    with pytest.raises(StorageError, match="is not a regular file that belongs to this user"):
        secret_of(tmp_path)


def test_a_link_or_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    key_file(tmp_path).touch(mode=0o600)
    with pytest.raises(StorageError, match="holds no key"):
        secret_of(tmp_path)
    key_file(tmp_path).unlink()
    (tmp_path / "known").write_text("a" * 64)
    key_file(tmp_path).symlink_to(tmp_path / "known")
    with pytest.raises(StorageError, match="is not a regular file that belongs to this user"):
        secret_of(tmp_path)
