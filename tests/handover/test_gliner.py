"""Tests the exported folders for GLiNER with the package gliner, which `make env` installs."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from adapt.handover.export_kind import ExportedModel
from adapt.handover.task_kinds import GLINER, TRAINED_GLINER, LabelledText, ToGliner
from tests import drive
from tests.handover.models import exported
from tests.model.tiny_families import tiny_config
from tests.samples import sentences, write

gliner = pytest.importorskip("gliner", reason="gliner is not installed: run `make env`")

WORDS = [["Mary", "saw", "New", "York", "."], ["He", "left"]]
TAGS = [["B-person", "O", "B-place", "I-place", "O"], ["O", "O"]]
LONG = ["model"] * 150, ["O"] * 149 + ["B-thing"]
"""A text that has more tokens than the tiny models have positions, with an entity after the last position."""


@pytest.fixture
def model(tiny_bert: Path, tmp_path: Path) -> ExportedModel:
    """Returns an exported BERT and a task with word-level labels."""
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    return replace(exported(folder, "mlm"), labelled=LabelledText("tokens", ["", ""], WORDS, TAGS))


@pytest.fixture
def jobs() -> Iterator[drive.Jobs]:
    yield from drive.jobs()


def settings_of(folder: Path) -> dict[str, Any]:
    """Returns the exported settings with small span layers, because the default size has ten million parameters."""
    found: dict[str, Any] = json.loads((folder / GLINER).read_text())
    return {**found, "hidden_size": 16, "dropout": 0.0}


def encoder_of(loaded: Any) -> torch.nn.Module:
    """Returns the Hugging Face `transformers` encoder of a GLiNER model."""
    encoder: torch.nn.Module = loaded.model.token_rep_layer.bert_layer.model
    return encoder


def check_same_encoder(loaded: Any, folder: Path) -> None:
    """Checks that a GLiNER model has the weights of the encoder in a folder, plus rows for GLiNER's special tokens."""
    expected = AutoModel.from_pretrained(folder, dtype=torch.float32)
    rows = len(AutoTokenizer.from_pretrained(folder))
    table = expected.get_input_embeddings().weight.shape
    found = encoder_of(loaded).state_dict()
    compared = {name: tensor for name, tensor in expected.state_dict().items() if not name.startswith("pooler.")}
    assert len(compared) > 10
    for name, tensor in compared.items():
        common = rows if tensor.shape == table else len(tensor)
        assert torch.equal(found[name][:common], tensor[:common]), name


def run_example(card: str, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Runs the example of a card in the folder of the model, with few steps and small span layers."""
    (code,) = (part.partition("```")[0] for part in card.split("```python\n")[1:] if "from gliner" in part)
    assert "max_steps=1000" in code
    (folder / GLINER).write_text(json.dumps(settings_of(folder)))
    monkeypatch.chdir(folder)
    exec(compile(code.replace("max_steps=1000", f"max_steps={steps}"), "card", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v2", "distilbert"])
def test_gliner_has_the_weights_of_the_encoder(family: str, tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    config = tiny_config(family)
    config.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ToGliner().write(exported(folder, "mlm"))
    loaded = gliner.GLiNER.from_config({**settings_of(folder), "model_name": str(folder)})
    check_same_encoder(loaded, folder)
    found = loaded.predict_entities("Mary saw New York .", ["person", "place"], threshold=0.0)
    assert found
    assert {each["label"] for each in found} <= {"person", "place"}


def test_training_lowers_the_loss_on_the_exported_examples(model: ExportedModel, tmp_path: Path) -> None:
    ToGliner().write(model)
    torch.manual_seed(0)
    loaded = gliner.GLiNER.from_config({**settings_of(model.folder), "model_name": str(model.folder)})
    examples = json.loads((model.folder / "gliner" / "train.json").read_text())
    options = {"learning_rate": 0.01, "logging_steps": 1, "save_strategy": "no", "dataloader_num_workers": 0}
    trainer = loaded.train_model(examples, None, output_dir=tmp_path / "out", max_steps=6, use_cpu=True, **options)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
    trained, before = encoder_of(loaded).state_dict(), AutoModel.from_pretrained(model.folder).state_dict()
    assert not torch.equal(
        trained["encoder.layer.0.output.dense.weight"], before["encoder.layer.0.output.dense.weight"]
    )


@pytest.mark.parametrize("has_entities", [True, False])
def test_the_example_in_the_card_runs_with_long_texts_and_any_tokenizer(
    has_entities: bool, model: ExportedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # as in SciBERT's folder, the tokenizer's configuration does not state the length of the model's longest input
    file = model.folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": int(1e30)}))
    labelled = LabelledText("tokens", [""] * 3, [*WORDS, LONG[0]], [*TAGS, LONG[1]])
    model = replace(model, labelled=labelled if has_entities else None)
    ToGliner().write(model)
    run_example(ToGliner().example(model), model.folder, monkeypatch, steps=1)
    assert capsys.readouterr().out.splitlines()[-1].startswith("[")
    trained = gliner.GLiNER.from_pretrained(str(model.folder / TRAINED_GLINER), local_files_only=True)
    assert (model.folder / TRAINED_GLINER / "model.safetensors").is_file()
    assert isinstance(trained.predict_entities(" ".join(LONG[0]), ["thing"]), list)


@pytest.mark.slow
def test_an_adapted_model_is_trained_as_its_card_says(
    jobs: drive.Jobs, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": words, "label": tags} for words, tags in zip(WORDS, TAGS, strict=True)] * 4
    arguments = [
        *(f"--model.path={tiny_bert}", "--training.max_steps=3", "--training.global_batch_size=8"),
        *("--training.sequence_length=64", "--evaluation.sequence_length=64", "--resources.workers=1"),
        f"--corpus.paths={write(tmp_path / 'corpus.jsonl', [{'text': text} for text in sentences(200)])}",
        *(f"--task.{split}={write(tmp_path / f'{split}.jsonl', rows)}" for split in ("train", "dev", "test")),
        *("--task.kind=tokens", "--task.name=names", "--export.kinds=[gliner]"),
    ]
    folder = Path(jobs.start(tmp_path / "job", arguments).result()["path"])
    loaded = gliner.GLiNER.from_config({**settings_of(folder), "model_name": str(folder)})
    check_same_encoder(loaded, folder)
    with pytest.raises(AssertionError):
        check_same_encoder(loaded, tiny_bert)
    run_example((folder / "README.md").read_text(), folder, monkeypatch, steps=1)
    trained = gliner.GLiNER.from_pretrained(str(folder / TRAINED_GLINER), local_files_only=True)
    assert isinstance(trained.predict_entities("Mary saw New York .", ["person", "place"]), list)
