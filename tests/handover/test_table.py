"""Tests which kinds of export a model supports, which settings change the key, and errors before anything runs."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, ToTei, ToVllm
from adapt.handover.table import EXPORT_KINDS, check_kinds, chosen_kinds, handed_rows, kinds_what, write_kinds
from adapt.model.sentence_vectors import SentenceVectors, exported_vectors, write_sentence_vectors
from adapt.parse import parse
from adapt.support.errors import ConfigError, ModelError
from tests.handover.models import bytewise, decoder, exported, exporting

MEAN = SentenceVectors("mean", max_length=64)


class Noted(ExportKind):
    """A user-defined kind of export."""

    def write(self, exported: ExportedModel) -> HandedOver:
        (exported.folder / "noted.txt").write_text(exported.config.name)
        return HandedOver("noted", ["noted.txt"])

    def example(self, exported: ExportedModel) -> str:
        return "Read noted.txt."


OWN = f"{__name__}:Noted"


def vector_model(tiny_bert: Path, folder: Path, vectors: SentenceVectors = MEAN) -> ExportedModel:
    shutil.copytree(tiny_bert, folder)
    write_sentence_vectors(vectors, folder)
    return exported(folder, "mlm", vectors=vectors)


def test_kinds_are_read_with_their_options(tmp_path: Path) -> None:
    given = ["--export.kinds", "[onnx, gguf]", "--gguf.type", "q8_0", "--corpus.paths", "x"]
    config = parse(given, "dontstop dapt")
    assert chosen_kinds(config)["gguf"].options.type == "q8_0"
    assert kinds_what(config) == {"kinds": {"onnx": {}, "gguf": {"type": "q8_0"}}}
    assert kinds_what(parse(["--corpus.paths", "x"], "dontstop dapt")) == {}
    with pytest.raises(ConfigError, match=r"did you mean onnx"):
        parse(["--export.kinds", "[onx]", "--corpus.paths", "x"], "dontstop dapt")
    with pytest.raises(ConfigError, match=r"names onnx twice"):
        chosen_kinds(exporting(["onnx", "onnx"]))


@pytest.mark.parametrize("kind", [kind for kind in EXPORT_KINDS if EXPORT_KINDS.load(kind).packages])
def test_a_missing_package_is_named_with_its_command(
    kind: str, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"names {kind}, .* not installed: .*\n.*pip install 'dontstop\[{kind}\]'"):
        check_kinds(exporting([kind], "causal"), tiny_bert)


def test_a_kind_that_would_ignore_added_modules_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "additions": [{"kind": "adapters", "size": 4}]}))
    check_kinds(exporting(["transformers"]), folder)
    with pytest.raises(ConfigError, match=r"gliner would ignore the modules .*: adapters"):
        check_kinds(exporting(["gliner"]), folder)
    with pytest.raises(ModelError, match=r"cannot be exported as gliner \(export.kinds\)"):
        write_kinds(ExportedModel(folder, exporting(["gliner"])))


def test_an_own_kind_is_written_and_shown_in_the_card(tiny_bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    config = exporting(["transformers", OWN])
    written, examples = write_kinds(ExportedModel(folder, config))
    assert [entry.kind for entry in written] == ["transformers", "noted"]
    assert {"config.json", "model.safetensors"} <= {*written[0].files}
    assert examples == ["Read noted.txt."]
    assert list(kinds_what(config)["kinds"][OWN]) == ["source"]
    assert handed_rows([*written, HandedOver("onnx", ["a", "b"], 1.234e-5, "Said.")])[1:] == [
        ["noted", "noted.txt", "", ""],
        ["onnx", "a, b", "1.2e-05", "Said."],
    ]


def test_kinds_for_vectors_pool_by_the_mean_without_another_setting(tiny_bert: Path) -> None:
    found = exported_vectors(exporting(["tei"]), tiny_bert, None, ["tei"])
    assert found == SentenceVectors("mean", max_length=128)
    with pytest.raises(ConfigError, match=r"is none, but export.kinds needs sentence vectors for setfit, tei"):
        exported_vectors(exporting([], sentence_transformers="none"), tiny_bert, None, ["setfit", "tei"])


def test_tei_gets_the_files_that_it_reads(tiny_bert: Path, tmp_path: Path) -> None:
    model = vector_model(tiny_bert, tmp_path / "model")
    assert {*ToTei().write(model).files} >= {
        "config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json", "sentence_bert_config.json",
    }  # fmt: skip
    pooling = json.loads((model.folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True  # Text Embeddings Inference reads the pooling settings
    assert pooling["pooling_mode_cls_token"] is False
    assert "--model-id /model" in ToTei().example(model)
    (model.folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer.json"):
        ToTei().write(model)


@pytest.mark.parametrize(
    ("vectors", "fault"),
    [
        (SentenceVectors("max", max_length=64), "does not support the pooling max"),
        (SentenceVectors("mean"), "no max_seq_length"),
    ],
)
def test_tei_refuses_what_it_would_stop_at(
    vectors: SentenceVectors, fault: str, tiny_bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=fault):
        ToTei().write(vector_model(tiny_bert, tmp_path / "model", vectors))


def test_tei_refuses_architectures_that_it_does_not_serve(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "gpt2", bytewise())
    with pytest.raises(ConfigError, match=r"does not serve gpt2 models"):
        ToTei().refuse(exporting(["tei"], "causal"), folder)


def test_vllm_takes_decoders(tmp_path: Path, tiny_bert: Path) -> None:
    folder = decoder(tmp_path / "model", "qwen2", bytewise())
    ToVllm().refuse(exporting(["vllm"], "causal"), folder)
    written = ToVllm().write(exported(folder))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {*written.files}
    assert "vllm serve ." in ToVllm().example(exported(folder))
    with pytest.raises(ConfigError, match=r"bert is trained as an encoder"):
        ToVllm().refuse(exporting(["vllm"]), tiny_bert)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["OtherForCausalLM"]}))
    with pytest.raises(ConfigError, match=r"not known to serve OtherForCausalLM"):
        ToVllm().refuse(exporting(["vllm"], "causal"), folder)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer_config.json"):
        ToVllm().write(exported(folder))
