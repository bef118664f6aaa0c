"""What is looked at before anything is started."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapt.errors import ModelError, StorageError
from adapt.preflight import check_space, check_weights


@pytest.fixture
def model(tmp_path: Path, tiny_bert: Path) -> Path:
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(tiny_bert, tmp_path / "model"))


@pytest.mark.parametrize("keep", [0, 4, 8, 200, -100, -1])
def test_weights_that_are_cut_short(model: Path, keep: int) -> None:
    check_weights(model)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=f"{file} cannot be read"):
        check_weights(model)


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"\2" + b"\0" * 7 + b"[]", b"\0" * 99]
)
def test_weights_that_are_something_else(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="no safetensors file"):
        check_weights(model)


def test_a_shard_that_is_cut_short(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(zip("ab", names, strict=True))}))
    for name in names:
        (model / name).write_bytes(whole)
    check_weights(model)
    (model / names[1]).write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=names[1]):
        check_weights(model)


def test_room_for_the_model_and_its_checkpoints(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checkpoints and a third on its way, of three times the weights; the model, and its file aside."""
    weights = (model / "model.safetensors").stat().st_size
    folder = tmp_path / "train"
    folder.mkdir()
    free = 11 * weights
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    check_space(folder, model, 2)
    free -= 1
    with pytest.raises(StorageError, match="GB free, and checkpoints and model take") as caught:
        check_space(folder, model, 2)
    assert str(folder) in caught.value.what
    check_space(folder, model, 1)
    (folder / "checkpoint").write_bytes(b"1")  # what an earlier start has left need not be free again
    check_space(folder, model, 2)
