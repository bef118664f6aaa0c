"""Tests how a checkpoint is found in folders and on the Hub, and the errors for paths that hold no model."""

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from adapt.model.locate import Pretrained, locate, model_files, tokenizer_files
from adapt.stage.preflight import check_weights
from adapt.support.errors import ModelError


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_folder_is_used_and_takes_precedence_over_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "a" / "model", "config.json", "model.safetensors")
    assert locate(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert locate("a/model") == folder  # the folder is used, not the Hugging Face id of the same name
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/a/model") == folder


@pytest.mark.parametrize("path", ["./gone", "../gone", "/gone", "~/gone", "models/mine/gone", ""])
def test_a_missing_folder_is_not_searched_on_the_network(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked the network"))
    with pytest.raises(ModelError, match=f"there is no model folder {path}|is a file|has no config"):
        locate(path)


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "model.safetensors") / "model.safetensors"
    with pytest.raises(ModelError, match="is a file"):
        locate(str(file))


def test_files_of_a_model_are_those_that_determine_its_outputs(tmp_path: Path) -> None:
    own = ["config.json", "merges.txt", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.json"]
    write(tmp_path, *own, "README.md", "pytorch_model.bin", "model.onnx", "code.py", "model.fp16.safetensors")
    assert [file.name for file in model_files(tmp_path)] == own
    assert [file.name for file in tokenizer_files(tmp_path)] == [own[1], *own[3:]]


def test_files_of_a_model_include_its_code(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "model.safetensors", "modeling.py")
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling.Model"}}))
    assert tmp_path / "modeling.py" in model_files(tmp_path)


def test_files_of_a_tokenizer_include_its_code(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenization.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert "tokenization.py" not in [file.name for file in tokenizer_files(tmp_path)]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["mine.T", None]}}))
    assert "tokenization.py" in [file.name for file in tokenizer_files(tmp_path)]


def test_shards_are_those_in_the_index(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "model-1.safetensors", "model-2.safetensors", "old.safetensors")
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    names = [file.name for file in model_files(tmp_path)]
    assert names == ["config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"]
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"index.json names: model-2.safetensors"):
        locate(str(tmp_path))


def test_pickled_weights_are_refused_with_advice(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "pytorch_model.bin", "training_args.bin")
    with pytest.raises(ModelError, match=r"only pytorch_model.bin, a pickle, which is not read") as caught:
        locate(str(tmp_path))
    assert f"from_pretrained('{tmp_path}').save_pretrained" in caught.value.fix


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors")
    with pytest.raises(ModelError, match=r"has no config.json"):
        locate(str(tmp_path))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_the_error_names_an_invalid_config(tmp_path: Path, content: str) -> None:
    write(tmp_path, "model.safetensors")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config.json (cannot be read|does not hold)"):
        locate(str(tmp_path))


def test_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json")
    with pytest.raises(ModelError, match="holds no tokenizer"):
        locate(str(tmp_path), weights=False)
    write(tmp_path, "vocab.txt")
    assert locate(str(tmp_path), weights=False) == tmp_path


class Hub:
    """Replaces huggingface_hub.snapshot_download by a cache folder, to which a download adds the files `online`."""

    def __init__(self, cache: Path, cached: list[str], online: list[str] | None) -> None:
        self.cache, self.online, self.calls = write(cache, *cached), online, []

    def __call__(self, name: str, local_files_only: bool, revision: str, **patterns: object) -> str:
        self.calls.append(("cache" if local_files_only else "network", name, revision))
        if not local_files_only:
            if self.online is None:
                raise LocalEntryNotFoundError("Name or service not known\nmore") from OfflineModeIsEnabled("offline")
            write(self.cache, *self.online)
        return str(self.cache)


def test_id_in_the_cache_does_not_touch_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path, ["config.json", "model.safetensors"], online=None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert locate("owner/model", "v1") == tmp_path
    assert hub.calls == [("cache", "owner/model", "v1")]


def test_an_incompletely_cached_id_is_completed_from_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, ["config.json"], online=["model.safetensors"])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert locate("owner/model", "v1") == tmp_path
    assert [call[0] for call in hub.calls] == ["cache", "network", "network"]  # the folders first, then the files


def test_an_id_without_safetensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(tmp_path, [], online=["config.json"]))
    with pytest.raises(ModelError, match=r"owner/model has no model.safetensors \(found: no weights\)"):
        locate("owner/model")


def test_only_the_needed_files_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[str]] = {}
    folder = write(tmp_path, "config.json", "model.safetensors", "tokenizer.json")

    def download(name: str, **options: list[str]) -> str:
        asked.update(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    texts = ["chat_template.jinja", "vocab.txt"]
    repository = [
        "config.json",
        "model.safetensors",
        "generation_config.json",
        *texts,
        "pytorch_model.bin",
        "old/model.safetensors",
        "old/spm.model",
    ]

    def chosen() -> list[str]:
        patterns = {"allow_patterns": asked["allow_patterns"], "ignore_patterns": asked["ignore_patterns"]}
        return list(huggingface_hub.utils.filter_repo_objects(repository, **patterns))

    locate("owner/model")
    assert chosen() == ["config.json", "model.safetensors", "generation_config.json", *texts]
    locate("owner/model", weights=False)
    assert chosen() == ["config.json", *texts]


def test_generator_and_chat_templates_in_folders_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["generator/config.json", "generator/model.safetensors", "additional_chat_templates/rag.jinja"]
    others = ["onnx/model.safetensors", "generator/pytorch_model.bin", "onnx/config.json"]

    def download(name: str, local_files_only: bool, revision: str, **patterns: list[str]) -> str:
        wanted = ["config.json", "model.safetensors", *names, *others]
        for file in [] if local_files_only else huggingface_hub.utils.filter_repo_objects(wanted, **patterns):
            write((tmp_path / file).parent, Path(file).name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    folder = locate("owner/model")
    assert Pretrained(folder, folder).at(folder).generator == folder / "generator"
    assert [(folder / name).exists() for name in (*names, *others)] == [True] * 3 + [False] * 3


def test_unreachable_or_unknown_ids_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelError, match=r"'owner/no-such-model' .* HF_HUB_OFFLINE is set"
    ) as caught:  # all tests set HF_HUB_OFFLINE
        locate("owner/no-such-model", "v1")
    assert "hf download owner/no-such-model" in caught.value.fix
    monkeypatch.delenv("HF_HUB_OFFLINE")  # huggingface_hub has already read the variable at import
    with pytest.raises(ModelError, match=r"'owner/no-such-model' .* could not be fetched") as caught:
        locate("owner/no-such-model", "v1")
    assert "model.path" in caught.value.fix
    with pytest.raises(ModelError, match="there is no model 'not an id'"):
        locate("not an id")


def test_finding_files_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "model.safetensors")
    code = (
        "import sys; from adapt.model.locate import locate, model_files; model_files(locate(sys.argv[1])); "
        "heavy = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
def test_a_peft_adapter_is_refused_with_advice(tmp_path: Path, with_config: bool) -> None:
    write(tmp_path, "adapter_model.safetensors", "tokenizer.json", *(["config.json"] if with_config else []))
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    error = refused(tmp_path)
    assert (
        error.what
        == f"{tmp_path} is a PEFT adapter (adapter_config.json), not a model: its weights are added to those of"
        " owner/base"
    )
    assert "merge_and_unload" in error.fix
    assert "owner/base" in error.fix
    (tmp_path / "adapter_config.json").write_text("broken")
    assert "is a PEFT adapter" in refused(tmp_path).what


def test_a_folder_with_a_complete_model_and_an_adapter_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, "adapter_config.json", "config.json", "model.safetensors")
    assert locate(str(tmp_path)) == tmp_path


def test_the_transformer_of_a_sentence_transformers_folder_is_used(tmp_path: Path) -> None:
    inner = write(tmp_path / "0_Transformer", "config.json", "model.safetensors")
    write(tmp_path / "1_Pooling", "config.json")
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    assert locate(str(tmp_path)) == inner
    assert locate(str(inner)) == inner


def test_a_model_of_sentence_transformers_is_downloaded_with_its_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    patterns: list[list[str]] = []

    def download(name: str, allow_patterns: list[str], **_: object) -> str:
        patterns.append(allow_patterns)
        if len(patterns) == 2:
            write(tmp_path / "0_Transformer", "config.json", "model.safetensors")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate("owner/model") == tmp_path / "0_Transformer"
    assert {"0_Transformer/config.json", "0_Transformer/model*.safetensors"} <= {*patterns[1]}
    assert all(pattern.startswith("0_Transformer/") for pattern in patterns[1])


@pytest.mark.parametrize("place", ["../other", "..", "a/b"])
def test_a_transformer_outside_of_its_model_is_not_looked_for(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path / "model", "config.json", "model.safetensors")
    write(tmp_path / "other", "config.json", "model.safetensors")
    (folder / "modules.json").write_text(json.dumps([{**MODULES[0], "path": place}]))
    assert locate(str(folder)) == folder


def test_a_folder_that_contains_model_folders_is_refused(tmp_path: Path) -> None:
    for step in ("checkpoint-1", "checkpoint-2"):
        write(tmp_path / "run" / step, "config.json", "model.safetensors")
    error = refused(tmp_path / "run")
    assert "has no config.json, but it contains model folders: " in error.what
    assert f"such as {tmp_path / 'run' / 'checkpoint-2'}" in error.fix
    snapshot = write(tmp_path / "models--a--b" / "snapshots" / "0af", "config.json")
    assert str(snapshot) in refused(tmp_path / "models--a--b").fix


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["model.Q4.gguf"], "has no config.json (found: model.Q4.gguf)"),
        (["config.json", "tf_model.h5"], "has no model.safetensors (found: tf_model.h5)"),
        (["consolidated.00.pth"], "(found: consolidated.00.pth)"),
        (["config.json", "pytorch_model.bin"], "only pytorch_model.bin, a pickle"),
        (["config.json", "b.safetensors", "a.onnx"], "has no model.safetensors (found: a.onnx, b.safetensors)"),
        ([], "is an empty folder"),
        (["README.md"], "has no config.json"),
    ],
)
def test_weights_in_another_format_are_refused(tmp_path: Path, names: list[str], said: str) -> None:
    assert said in refused(write(tmp_path / "model", *names)).what


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("https://huggingface.co/FacebookAI/roberta-base", "set model.path to FacebookAI/roberta-base"),
        ("https://hf.co/a/b/tree/main", "set model.path to a/b"),
        ("https://huggingface.co/a/b/tree/v2", "set model.path to a/b and model.revision to v2"),
        ("s3://bucket/model", "download the model into a folder"),
    ],
)
def test_the_address_of_a_web_page_is_refused(address: str, fix: str) -> None:
    assert refused(address).fix.startswith(fix)


def test_a_pointer_of_git_lfs_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "config.json")
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match=r"model\.safetensors is a Git LFS pointer") as caught:
        check_weights(tmp_path)
    assert "git lfs pull" in caught.value.fix
