"""Tests that LoRA trains only added weights, and that transformers loads a saved model with the same predictions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    RobertaConfig,
    RobertaForMaskedLM,
)

from adapt.config import Config, FinetuneConfig, ModelConfig
from adapt.finetune.classifier import new_classifier
from adapt.finetune.examples import Problem
from adapt.finetune.finetune_loop import FinetuneDevice, FinetuneSettings, check_savable
from adapt.finetune.finetune_modes import add_lora, trained_numbers, tune_classifier
from adapt.model.load import load_model
from adapt.support.errors import ConfigError
from adapt.task.dataset import IGNORED, Split
from tests.finetune.conftest import Learn
from tests.finetune.toy import toy

CPU = FinetuneDevice(torch.device("cpu"), "fp32")


def test_lora_trains_only_its_additions(tiny_bert: Path, tmp_path: Path) -> None:
    toy(tmp_path)
    problem = Problem.load(tmp_path, 128, [])
    encoder = load_model(tiny_bert, causal=False).base_model
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    finetune = FinetuneConfig(mode="lora", epochs=1, learning_rate=1e-2, lora_rank=4)
    learned = tune_classifier(encoder, problem, FinetuneSettings(finetune, 1, "first", 128), 0, CPU)
    after = {name.replace(".base_layer", ""): tensor for name, tensor in encoder.state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    trained = {name for name, parameter in learned.classifier.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or name.startswith("head.") for name in trained)
    assert sum("lora_A" in name for name in trained) == 2 * 6  # 2 layers with 6 linear modules each
    assert learned.trained_parameters == 2 * 4 * (4 * 64 + 2 * 96) + 32 * 32 + 32 + 32 * 3 + 3
    assert any(tensor.abs().sum() > 0 for name, tensor in after.items() if "lora_B" in name)


def test_lora_does_not_change_the_model_before_training(tiny_bert: Path, tmp_path: Path) -> None:
    toy(tmp_path)
    problem = Problem.load(tmp_path, 128, [])
    model = load_model(tiny_bert, causal=False)
    classifier = new_classifier(model.base_model, FinetuneConfig(), "first", "single_label", 3).eval()
    batch = problem.examples["dev"].batch(np.arange(5), CPU.device)
    before, parameters = classifier(batch), trained_numbers(classifier)
    add_lora(classifier.encoder, FinetuneConfig())
    torch.testing.assert_close(classifier.eval()(batch), before)
    assert trained_numbers(classifier) < parameters


@pytest.mark.parametrize("kind", ["single_label", "multi_label", "tokens"])
def test_a_saved_model_loads_with_transformers(learn: Learn, tmp_path: Path, kind: str) -> None:
    for name in ("model", ".model.aside"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "half.safetensors").touch()  # a leftover of a killed run
    found = learn(kind, save_model=True, pooling="first", epochs=2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]
    assert not (tmp_path / "out" / "model" / "half.safetensors").exists()
    _check(tmp_path, found.predictions["test"], kind)


def test_a_saved_roberta(tiny_bert: Path, tmp_path: Path) -> None:
    from adapt.finetune.seed_run import finetune_work
    from adapt.model.locate import Pretrained

    shape = BertConfig.from_pretrained(tiny_bert).to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = RobertaConfig(**{name: shape[name] for name in names}, max_position_embeddings=66, pad_token_id=0)
    RobertaForMaskedLM(config).save_pretrained(tmp_path / "roberta")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "roberta")
    toy(tmp_path / "task-single_label")
    start = Pretrained(tmp_path / "roberta", tiny_bert)
    found = finetune_work(
        Config(finetune=FinetuneConfig(epochs=1, save_model=True), model=ModelConfig()),
        start,
        tmp_path / "task-single_label",
        0,
        tmp_path / "out",
    )
    assert found.metrics["max_length"] == 65
    assert (tmp_path / "out" / "model" / "model.safetensors").stat().st_mode & 0o044


def _check(folder: Path, lines: list[dict], kind: str) -> None:
    made = AutoModelForTokenClassification if kind == "tokens" else AutoModelForSequenceClassification
    model = made.from_pretrained(folder / "out" / "model").eval()
    AutoTokenizer.from_pretrained(folder / "out" / "model")
    split = Split.load(folder / f"task-{kind}", "test")
    for tokens, labels, line in zip(split.tokens, split.labels, lines, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(tokens)[None].long()).logits[0]
        found = logits.sigmoid() if kind == "multi_label" else logits.softmax(-1)
        if kind == "tokens":
            found = found[np.array(labels) != IGNORED]
        np.testing.assert_allclose(line["probabilities"], found, atol=1e-4)
    assert model.config.label2id == {label: number for number, label in model.config.id2label.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "lora"}, "works with finetune.mode fine_tune, not with lora"),
        ({"pooling": "mean"}, "no classifier like ours for model type 'bert' with finetune.pooling mean"),
    ],
)
def test_models_that_cannot_be_saved_are_refused(tiny_bert: Path, changes: dict, message: str) -> None:
    settings = FinetuneSettings.of(FinetuneConfig(save_model=True, **changes), tiny_bert, "first", 10)
    with pytest.raises(ConfigError, match=message):
        check_savable(settings, tiny_bert, "single_label")


def test_defaults(tiny_bert: Path) -> None:
    few, many = (FinetuneSettings.of(FinetuneConfig(), tiny_bert, "first", number) for number in (5000, 5001))
    assert (few.epochs, many.epochs) == (10, 3)
    assert (few.pooling, few.max_length) == ("first", 128)
    assert few.optimization.learning_rate == 2e-5
    assert FinetuneSettings.of(FinetuneConfig(mode="lora"), tiny_bert, "last", 1).pooling == "last"
    assert FinetuneSettings.of(FinetuneConfig(mode="lora"), tiny_bert, "last", 1).optimization.learning_rate == 2e-4
