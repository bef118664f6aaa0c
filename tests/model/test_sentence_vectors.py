"""Tests the export for sentence-transformers: the library loads the folder, which has the settings of the model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from adapt.config import Config, ExportConfig, ObjectiveConfig
from adapt.model.locate import locate
from adapt.model.sentence_vectors import (
    SentenceVectors,
    exported_vectors,
    read_sentence_vectors,
    write_sentence_vectors,
)
from adapt.parse import parse
from adapt.support.errors import ConfigError, ModelError
from tests.embed.toys import loaded
from tests.handover.models import bytewise, decoder
from tests.samples import sentences

TEXTS = sentences(6, shortest=3, longest=30)
MEAN = SentenceVectors("mean", max_length=128)


def written(tiny_bert: Path, folder: Path, vectors: SentenceVectors) -> Path:
    """Returns a copy of the model with the files of sentence-transformers."""
    shutil.copytree(tiny_bert, folder)
    write_sentence_vectors(vectors, folder)
    return folder


def exporting(**settings: object) -> Config:
    return Config(export=ExportConfig(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(("pooling", "ours"), [("mean", "mean"), ("cls", "first")])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_transformers_makes_the_vectors_of_our_embedder(
    tiny_bert: Path, tmp_path: Path, pooling: str, ours: str, normalize: bool
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = written(tiny_bert, tmp_path / "model", SentenceVectors(pooling, normalize, 64))
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = loaded("transformer", tmp_path, tiny_bert, pooling=ours, sequence_length=128).embed(TEXTS).vectors
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert model.max_seq_length == 64
    assert model.get_sentence_embedding_dimension() == 32
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=2e-5)
    assert read_sentence_vectors(folder) == replace(
        SentenceVectors(pooling, normalize, 64),
        settings={"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )


def test_texts_are_truncated_to_the_length_of_the_folder(tiny_bert: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(
        str(written(tiny_bert, tmp_path / "model", SentenceVectors("mean", max_length=5))), device="cpu"
    )
    one, other = model.encode(["the model . the loss", "the model . a layer"])
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_folder_is_still_a_masked_language_model(tiny_bert: Path, tmp_path: Path) -> None:
    folder = written(tiny_bert, tmp_path / "model", MEAN)
    model, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert torch.equal(
        model.state_dict()["cls.predictions.bias"],
        AutoModelForMaskedLM.from_pretrained(tiny_bert).state_dict()["cls.predictions.bias"],
    )
    assert locate(str(folder)) == folder


@pytest.mark.parametrize(("number", "pad"), [(0, "<s>"), (None, "</s>")])
def test_decoders_without_a_pad_token_get_one(tmp_path: Path, number: int | None, pad: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = decoder(tmp_path / "model", "llama", bytewise(), pad_token_id=number)
    users = (folder / "tokenizer_config.json").rename(tmp_path / "tokenizer_config.json")
    (folder / "tokenizer_config.json").symlink_to(users)
    before = users.read_text()
    write_sentence_vectors(SentenceVectors("mean", max_length=32), folder)
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert model.tokenizer.pad_token == pad
    together = model.encode(TEXTS)
    np.testing.assert_allclose(together, np.concatenate([model.encode([text]) for text in TEXTS]), atol=1e-5)
    assert users.read_text() == before


def test_settings_of_the_library_are_read(tiny_bert: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = written(tiny_bert, tmp_path / "model", SentenceVectors("cls", True, 64))
    model = library.SentenceTransformer(str(folder), device="cpu", prompts={"query": "query: "})
    model.save(str(tmp_path / "saved"))
    found = read_sentence_vectors(tmp_path / "saved")
    assert found
    assert (found.pooling, found.normalize) == ("cls", True)
    assert found.settings["prompts"]["query"] == "query: "


def folder_of(folder: Path, *modules: tuple[str, str], **pooling: object) -> Path:
    """Writes a folder as older versions of sentence-transformers do, and returns the subfolder with the transformer."""
    inner = folder / "0_Transformer"
    for name in ("0_Transformer", "1_Pooling"):
        (folder / name).mkdir(parents=True)
    content = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(content))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (inner / "config.json").write_text("{}")
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": true}')
    return inner


TRANSFORMER = ("0_Transformer", "sentence_transformers.models.Transformer")
POOLING = ("1_Pooling", "sentence_transformers.models.Pooling")


def test_a_model_keeps_its_pooling_and_length(tmp_path: Path) -> None:
    inner = folder_of(
        tmp_path / "old", TRANSFORMER, POOLING, pooling_mode_cls_token=True, pooling_mode_max_tokens=False
    )
    kept = SentenceVectors("cls", False, 256, lowercase=True)
    assert exported_vectors(Config(), inner) == kept
    assert exported_vectors(exporting(sentence_transformers="none"), inner) is None
    asked = exporting(sentence_transformers="mean", normalize=True, max_length=100)
    assert exported_vectors(asked, inner) == replace(kept, pooling="mean", normalize=True, max_length=100)
    assert exported_vectors(Config(), inner, trained="mean") == replace(kept, pooling="mean")


@pytest.mark.parametrize(
    ("module", "pooling", "said"),
    [
        (("2_Dense", "sentence_transformers.models.Dense"), {"pooling_mode_mean_tokens": True}, "module Dense"),
        (POOLING, {"pooling_mode": ["cls", "mean"]}, "pooling cls, mean"),
        (POOLING, {"pooling_mode": "other"}, "pooling other"),
    ],
)
def test_what_cannot_be_kept_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], module: tuple[str, str], pooling: dict[str, object], said: str
) -> None:
    inner = folder_of(tmp_path / "old", TRANSFORMER, POOLING, module, **pooling)
    assert exported_vectors(Config(), inner) is None
    assert (
        f"({said}) are not supported and will not be exported: set export.sentence_transformers"
        in capsys.readouterr().err
    )


def test_other_models_are_exported_for_sentence_vectors_on_request(tiny_bert: Path) -> None:
    assert exported_vectors(Config(), tiny_bert) is None
    assert exported_vectors(exporting(sentence_transformers="mean"), tiny_bert) == MEAN


def test_contradictions_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is mean, but mlm trains vectors with cls pooling"):
        exported_vectors(exporting(sentence_transformers="mean"), tiny_bert, trained="cls")
    decoder = replace(exporting(sentence_transformers="cls"), objective=ObjectiveConfig("causal"))
    with pytest.raises(ConfigError, match="the first token of a decoder sees no other token"):
        exported_vectors(decoder, tiny_bert)
    with pytest.raises(ConfigError, match=r"export\.max_length is 500, but the model takes 128 tokens"):
        exported_vectors(exporting(sentence_transformers="mean", max_length=500), tiny_bert)
    with pytest.raises(ConfigError, match=r"export\.sentence_transformers takes mean, cls, none or null, not max"):
        parse(["--export.sentence_transformers", "max", "--corpus.paths", "a.jsonl"], "dapt")
    shutil.copytree(tiny_bert, tmp_path / "added")
    config = json.loads((tiny_bert / "config.json").read_text())
    (tmp_path / "added" / "config.json").write_text(json.dumps({**config, "additions": [{"kind": "adapters"}]}))
    with pytest.raises(ModelError, match="cannot be loaded by sentence-transformers"):
        write_sentence_vectors(MEAN, tmp_path / "added")
