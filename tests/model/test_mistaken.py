"""What is given in place of a model is named for what it is."""

import json
from pathlib import Path

import pytest

from adapt.errors import ModelError
from adapt.model.locate import locate
from adapt.preflight import check_weights
from tests.model.test_locate import write

ADAPTER = {"base_model_name_or_path": "owner/base", "peft_type": "LORA"}
MODULES = [
    {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def refused(path: Path | str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        locate(str(path))
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_of_peft(tmp_path: Path, with_config: bool) -> None:
    write(tmp_path, "adapter_model.safetensors", "tokenizer.json", *(["config.json"] if with_config else []))
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    error = refused(tmp_path)
    assert (
        error.what
        == f"{tmp_path} is a PEFT adapter (adapter_config.json) and no model: it holds what is added to owner/base"
    )
    assert "merge_and_unload" in error.fix
    assert "owner/base" in error.fix
    (tmp_path / "adapter_config.json").write_text("broken")
    assert "is a PEFT adapter" in refused(tmp_path).what


def test_a_whole_model_beside_an_adapter(tmp_path: Path) -> None:
    write(tmp_path, "adapter_config.json", "config.json", "model.safetensors")
    assert locate(str(tmp_path)) == tmp_path


def test_a_model_of_sentence_transformers(tmp_path: Path) -> None:
    inner = write(tmp_path / "0_Transformer", "config.json", "model.safetensors")
    write(tmp_path / "1_Pooling", "config.json")
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    error = refused(tmp_path)
    assert "is a model of sentence-transformers, and its transformer is in the folder 0_Transformer" in error.what
    assert f"set model.path to {inner}" in error.fix
    assert locate(str(inner)) == inner


def test_folders_that_hold_models(tmp_path: Path) -> None:
    for step in ("checkpoint-1", "checkpoint-2"):
        write(tmp_path / "run" / step, "config.json", "model.safetensors")
    error = refused(tmp_path / "run")
    assert "has no config.json, but folders in it do: " in error.what
    assert f"such as {tmp_path / 'run' / 'checkpoint-2'}" in error.fix
    snapshot = write(tmp_path / "models--a--b" / "snapshots" / "0af", "config.json")
    assert str(snapshot) in refused(tmp_path / "models--a--b").fix


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["model.Q4.gguf"], "found: model.Q4.gguf, GGUF, which is made for llama.cpp"),
        (["config.json", "model.Q4.gguf"], "GGUF"),
        (["config.json", "tf_model.h5"], "tf_model.h5, TensorFlow's"),
        (["config.json", "flax_model.msgpack"], "Flax"),
        (["config.json", "model.onnx"], "ONNX"),
        (["consolidated.00.pth"], "a pickle, which is not read because it can run code"),
        (["config.json", "pytorch_model.bin"], "only pytorch_model.bin, a pickle"),
        (
            ["config.json", "weights.safetensors"],
            "weights.safetensors, but transformers reads model.safetensors",
        ),
        (["config.json", "consolidated.safetensors"], "consolidated.safetensors"),
        ([], "is an empty folder"),
        (["README.md"], "has no config.json"),
    ],
)
def test_weights_in_another_form(tmp_path: Path, names: list[str], said: str) -> None:
    assert said in refused(write(tmp_path / "model", *names)).what


def test_a_file(tmp_path: Path) -> None:
    write(tmp_path / "model", "config.json", "model.safetensors")
    write(tmp_path, "alone.safetensors", "model.gguf", "model.tar.gz")
    assert refused(tmp_path / "model" / "model.safetensors").fix.endswith(
        f"give the folder that it is in: {tmp_path / 'model'}"
    )
    assert refused(tmp_path / "alone.safetensors").what.endswith("is a file")
    assert "llama.cpp" in refused(tmp_path / "model.gguf").what
    assert "unpack it" in refused(tmp_path / "model.tar.gz").fix


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("https://huggingface.co/FacebookAI/roberta-base", "set model.path to FacebookAI/roberta-base"),
        ("https://hf.co/a/b/tree/main", "set model.path to a/b"),
        ("https://huggingface.co/a/b/tree/v2", "set model.path to a/b and model.revision to v2"),
        ("s3://bucket/model", "download the model into a folder"),
    ],
)
def test_an_address(address: str, fix: str) -> None:
    assert refused(address).fix.startswith(fix)


def test_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    write(tmp_path, "config.json")
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match=r"model\.safetensors is a pointer of Git LFS") as caught:
        check_weights(tmp_path)
    assert "git lfs pull" in caught.value.fix
