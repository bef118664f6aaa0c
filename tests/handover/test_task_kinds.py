"""Tests the exported folders for SetFit and GLiNER. SetFit loads its folder in the test."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from adapt.config import TaskConfig
from adapt.handover.export_kind import ExportedModel
from adapt.handover.task_kinds import HEAD, LabelledText, ToGliner, ToSetFit, entities_of, read_labelled
from adapt.model.sentence_vectors import SentenceVectors, write_sentence_vectors
from adapt.support.errors import ConfigError, DataError
from tests.handover.models import bytewise, decoder, exported, exporting
from tests.samples import write

LABELS = ["heart", "heart", "star", "star", "stone", "stone"]
TEXTS = ["the model . the loss", "the model . a loss", "a layer of data", "the layer of data", "we train", "we test"]
WORDS = [["Mary", "saw", "New", "York", "."], ["He", "left"]]
TAGS = [["B-person", "O", "B-place", "I-place", "O"], ["O", "O"]]


@pytest.fixture
def model(tiny_bert: Path, tmp_path: Path) -> ExportedModel:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    vectors = SentenceVectors("mean", max_length=64)
    write_sentence_vectors(vectors, folder)
    return exported(folder, "mlm", vectors=vectors)


def test_setfit_predicts_with_the_head_on_our_vectors(model: ExportedModel) -> None:
    setfit = pytest.importorskip("setfit")
    from sentence_transformers import SentenceTransformer

    before = {file.name: file.stat().st_ino for file in model.folder.iterdir()}
    labelled = LabelledText("single_label", TEXTS, [[]] * 6, [[label] for label in LABELS])
    written = ToSetFit().write(replace(model, labelled=labelled))
    assert {HEAD, "config_setfit.json", "modules.json"} <= {*written.files}
    assert before.items() <= {file.name: file.stat().st_ino for file in model.folder.iterdir()}.items()
    loaded = setfit.SetFitModel.from_pretrained(str(model.folder))
    assert loaded.labels == ["heart", "star", "stone"]
    vectors = SentenceTransformer(str(model.folder)).encode(TEXTS)
    expected = LogisticRegression(max_iter=1000).fit(vectors, LABELS)
    assert [*loaded.predict(TEXTS)] == [*expected.predict(vectors)]
    np.testing.assert_allclose(loaded.predict_proba(TEXTS).numpy(), expected.predict_proba(vectors), atol=1e-4)


def test_setfit_has_a_classifier_per_label_for_several_labels(model: ExportedModel) -> None:
    setfit = pytest.importorskip("setfit")
    many: list[list[str]] = [["a"], ["a"], ["a", "b"], ["a", "b"], [], []]
    ToSetFit().write(replace(model, labelled=LabelledText("multi_label", TEXTS, [[]] * 6, many)))
    predicted = setfit.SetFitModel.from_pretrained(str(model.folder)).predict(TEXTS)
    assert predicted.shape == (6, 2)


def test_without_a_task_setfit_has_no_head(model: ExportedModel) -> None:
    setfit = pytest.importorskip("setfit")
    (model.folder / HEAD).write_bytes(b"of an earlier run")
    written = ToSetFit().write(model)
    assert HEAD not in written.files
    assert not (model.folder / HEAD).exists()
    assert setfit.SetFitModel.from_pretrained(str(model.folder)).model_head is not None
    assert "Trainer" in ToSetFit().example(model)


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (TaskConfig(train="x", kind="tokens"), "labels of words"),
        (TaskConfig(train="x", pair_field="b"), "pairs of texts"),
    ],
)
def test_setfit_refuses_other_tasks(task: TaskConfig, fault: str, tiny_bert: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        ToSetFit().refuse(replace(exporting(["setfit"]), task=task), tiny_bert)


@pytest.mark.parametrize(
    ("kind", "labels", "fault"),
    [
        ("single_label", ["heart"] * 3, "the train split of the task task has only one class, heart"),
        ("multi_label", [["a"], [], ["a"]], "has only one class, a"),
        ("multi_label", [[], [], []], "has no label"),
        ("multi_label", [["a", "b"]] * 3, "have the same labels"),
        ("single_label", ["heart", "Heart", "star"], "differ only in case"),
    ],
)
def test_setfit_refuses_labels_that_a_head_cannot_learn(
    kind: Any, labels: list[Any], fault: str, tmp_path: Path
) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=False)]
    task = TaskConfig(train=write(tmp_path / "train.jsonl", rows), kind=kind)
    with pytest.raises(DataError, match=fault):
        ToSetFit().check_task(task)
    assert len(ToGliner().check_task(task)) == 3


def test_gliner_gets_its_settings_and_the_entities(model: ExportedModel) -> None:
    labelled = LabelledText("tokens", ["", ""], WORDS, TAGS)
    written = ToGliner().write(replace(model, labelled=labelled))
    assert written.files == ["gliner/gliner_config.json", "gliner/train.json"]
    settings = json.loads((model.folder / "gliner" / "gliner_config.json").read_text())
    assert settings == {"model_type": "gliner", "model_name": ".", "name": "dapt", "max_len": 128}
    assert json.loads((model.folder / "gliner" / "train.json").read_text()) == [
        {"tokenized_text": WORDS[0], "ner": [[0, 0, "person"], [2, 3, "place"]]},
        {"tokenized_text": WORDS[1], "ner": []},
    ]
    assert ToGliner().write(model).files == ["gliner/gliner_config.json"]


def test_gliner_refuses_decoders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GLiNER needs an encoder, but gpt2 is trained as a decoder"):
        ToGliner().refuse(exporting(["gliner"], "causal"), decoder(tmp_path / "model", "gpt2", bytewise()))


def test_entities_begin_at_another_type() -> None:
    assert entities_of(["B-a", "I-a", "B-a", "I-b", "O", "I-b", "I-b"]) == [
        (0, 1, "a"), (2, 2, "a"), (3, 3, "b"), (5, 6, "b"),
    ]  # fmt: skip


def test_the_train_split_is_read(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(
        "".join(json.dumps({"text": words, "label": tags}) + "\n" for words, tags in zip(WORDS, TAGS, strict=True))
    )
    found = read_labelled(TaskConfig(train=str(file), kind="tokens"))
    assert ([*map(list, found.words)], [*map(list, found.labels)]) == (WORDS, TAGS)
    assert found.classes == ["B-person", "B-place", "I-place", "O"]
