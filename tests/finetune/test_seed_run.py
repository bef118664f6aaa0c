"""Tests fine-tuning runs in all modes: scores, files, the choice of the domain's parameters, and the Ray task."""

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

from adapt.config import Config, FinetuneConfig, ModelConfig, TrainingConfig
from adapt.finetune.classifier import new_classifier
from adapt.finetune.examples import Problem
from adapt.finetune.finetune_loop import FinetuneDevice, FinetuneSettings
from adapt.finetune.ray_task import (
    CURVE_FILE,
    DEV_PREDICTIONS_FILE,
    GPU_PARTS,
    PREDICTIONS_FILE,
    FinetuneRun,
    RunResult,
    fits_with_less,
    gpus_per_seed,
    run_finetuning,
)
from adapt.finetune.seed_run import add_lora, finetune_work, trained_numbers, tune_classifier
from adapt.model.additions.domain_modules import (
    attach_adapters,
    attach_domains,
    domains_of,
    own_parameters,
    prototype_of,
)
from adapt.model.additions.table import with_addition
from adapt.model.architecture import check_savable
from adapt.model.load import load_model, save_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ClusterError, ConfigError, DataError, DeviceMemoryError, ModelError, TrainingError
from adapt.task.prepare_task import IGNORED, Split
from tests.finetune.conftest import Learn
from tests.finetune.toy import toy

pytestmark = pytest.mark.heavy

MODES = ("fine_tune", "lora", "feature_extraction", "linear_probe")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["single_label", "multi_label", "tokens"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_the_toy_task(learn: Learn, mode: str, kind: str) -> None:
    found = learn(kind, mode)
    metrics = found.metrics
    assert metrics["dev_score"] > metrics["majority_score"] + 0.25
    assert metrics["score"] > metrics["majority_score"] + 0.25
    assert not metrics["degenerate"]
    assert json.loads(json.dumps(metrics)) == metrics
    assert [len(found.predictions[name]) for name in ("dev", "test")] == [40, 41]
    for line in found.predictions["test"]:
        probabilities = np.array(line["probabilities"])
        if kind == "multi_label":
            assert line["predicted"] == np.flatnonzero(probabilities >= 0.5).tolist()
        else:
            assert np.all(line["predicted"] == probabilities.argmax(-1))
            np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)


def test_two_runs_with_one_seed_are_equal(learn: Learn) -> None:
    first, again, other = (learn(seed=seed, epochs=2) for seed in (0, 0, 1))
    assert first.predictions == again.predictions
    assert first.curve == again.curve
    assert first.predictions != other.predictions


def test_the_curve_and_the_best_epoch(learn: Learn) -> None:
    found = learn(epochs=5)
    metrics, scores = found.metrics, [entry["dev"] for entry in found.curve]
    assert metrics["epochs"] == len(scores) <= 5
    assert metrics["best_epoch"] == int(np.argmax(scores)) + 1
    assert metrics["dev_score"] == max(scores)
    assert found.curve[0]["loss"] > found.curve[-1]["loss"]


@pytest.mark.parametrize("mode", ["fine_tune", "linear_probe"])
def test_training_ends_when_dev_does_not_get_better(learn: Learn, mode: str) -> None:
    found = learn(mode=mode, learning_rate=1e-12, epochs=9, patience=2)
    # Epoch 1 is the best. Training stops after two epochs without improvement.
    assert found.metrics["epochs"] == 3
    assert found.metrics["best_epoch"] == 1


def test_a_loss_that_is_not_finite(learn: Learn) -> None:
    with pytest.raises(TrainingError, match=r"is nan at step \d+"):
        learn(learning_rate=1e30)


def test_long_examples_are_cut_and_counted(learn: Learn) -> None:
    found = learn(epochs=1, max_length=10)
    assert found.metrics["max_length"] == 10
    assert all(count > 0 for count in found.metrics["truncated"].values())
    assert learn(epochs=1).metrics["max_length"] == 128  # 128 tokens are the limit of the model


def test_cut_off_words_count_as_outside(learn: Learn) -> None:
    whole, cut = learn("tokens"), learn("tokens", max_length=12)
    assert [len(line["predicted"]) for line in cut.predictions["test"]] == [
        len(line["label"]) for line in whole.predictions["test"]
    ]
    assert cut.metrics["score"] < whole.metrics["score"]


@pytest.mark.parametrize("mode", MODES)
def test_a_class_that_train_lacks(tiny_bert: Path, tmp_path: Path, mode: str) -> None:
    facts = toy(tmp_path)
    dataclasses.replace(facts, labels=["a", "b", "c", "unseen"]).save(tmp_path)
    for name in ("dev", "test"):
        split = Split.load(tmp_path, name)
        split.labels[0] = 3
        split.save(tmp_path, name)
    config = Config(finetune=FinetuneConfig(mode=mode, epochs=1, class_weights="balanced"))
    found = finetune_work(config, Pretrained(tiny_bert, tiny_bert), tmp_path, 0, tmp_path / "out")
    assert all(len(line["probabilities"]) == 4 for line in found.predictions["test"])
    assert np.isfinite(found.metrics["score"])


def test_an_empty_split(tiny_bert: Path, tmp_path: Path) -> None:
    toy(tmp_path)
    Split([], [], [], [], []).save(tmp_path, "dev")
    with pytest.raises(DataError, match="task toy has no dev examples"):
        finetune_work(Config(), Pretrained(tiny_bert, tiny_bert), tmp_path, 0, tmp_path / "out")


@pytest.mark.parametrize("mode", MODES)
def test_truncation_that_removes_all_words_is_refused(learn: Learn, mode: str) -> None:
    with pytest.raises(DataError, match="task toy: no word of the train examples fits in 1 tokens"):
        learn("tokens", mode, max_length=1)


def test_equal_predictions_for_all_examples_are_reported(learn: Learn) -> None:
    found = learn(learning_rate=1e-12, epochs=1, class_weights="none")
    answers = {line["predicted"] for line in found.predictions["test"]}
    assert found.metrics["degenerate"] == (len(answers) == 1)


def test_through_ray(ray_cluster: None, tiny_bert: Path, tmp_path: Path) -> None:
    toy(tmp_path / "task")
    config = Config(finetune=FinetuneConfig(epochs=1, seeds=[0, 3]))
    folder = tmp_path / "out"
    metrics = run_finetuning(FinetuneRun(config, Pretrained(tiny_bert, tiny_bert), str(tmp_path / "task"), 3), folder)
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    test = Split.load(tmp_path / "task", "test")
    assert [line["id"] for line in lines] == test.ids
    assert [line["label"] for line in lines] == test.labels
    assert [line["leaked"] for line in lines] == test.leaked
    assert len((folder / "dev_predictions.jsonl").read_text().splitlines()) == 40
    assert [set(entry) for entry in json.loads((folder / "curve.json").read_text())] == [{"epoch", "loss", "dev"}]
    assert (metrics["seed"], metrics["mode"]) == (3, "fine_tune")
    assert "task" not in metrics  # the name of the task may change later, so it is not stored
    assert metrics["device_seconds"] == metrics["seconds"] > 0
    Split([], [], [], [], []).save(tmp_path / "task", "test")
    with pytest.raises(DataError, match="has no test examples"):
        run_finetuning(FinetuneRun(config, Pretrained(tiny_bert, tiny_bert), str(tmp_path / "task"), 3), folder)


@pytest.mark.parametrize("asked", [{"cpus_per_seed": 1000.0}, {"gpus_per_seed": 1000.0}])
def test_resources_that_no_machine_has_are_refused(
    ray_cluster: None, tiny_bert: Path, tmp_path: Path, asked: dict
) -> None:
    run = FinetuneRun(Config(finetune=FinetuneConfig(**asked)), Pretrained(tiny_bert, tiny_bert), str(tmp_path), 0)
    with pytest.raises(ClusterError, match=r"1000 [CG]PU") as caught:
        run_finetuning(run, tmp_path)
    assert "finetune.cpus_per_seed" in caught.value.fix


@pytest.mark.parametrize(
    ("asked", "fix", "sequences"),
    [
        ({}, "set finetune.micro_batch to 8", 16),
        ({"micro_batch": 6, "mode": "lora"}, "set finetune.micro_batch to 3", 6),
        ({"micro_batch": 100, "batch_size": 5}, "set finetune.micro_batch to 2", 5),
        ({"micro_batch": 1}, "lower finetune.max_length", 1),
        ({"mode": "linear_probe"}, "lower finetune.max_length", 1),
    ],
)
def test_the_fix_for_too_little_memory(asked: dict, fix: str, sequences: int) -> None:
    told, passing = fits_with_less(FinetuneConfig(**asked))
    assert told.startswith(fix)
    assert passing == sequences


def test_a_run_that_runs_out_of_memory_names_the_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lacks(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("adapt.finetune.ray_task.await_room", lambda *_: None)
    monkeypatch.setattr("ray.cluster_resources", dict)
    monkeypatch.setattr("ray.remote", lambda **_: lambda task: SimpleNamespace(remote=lambda *given: None))
    monkeypatch.setattr("ray.get", lacks)
    with pytest.raises(DeviceMemoryError, match="ran out of memory") as caught:
        run_finetuning(FinetuneRun(Config(), Pretrained(tmp_path, tmp_path), "", 0), tmp_path)
    assert (caught.value.field, caught.value.micro_batch) == ("finetune.micro_batch", 16)
    assert caught.value.fix == "set finetune.micro_batch to 8"


@pytest.mark.parametrize("seeds", range(1, 10))
def test_the_seeds_share_a_gpu(ray_cluster: None, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"GPU": 1.0})
    share = gpus_per_seed(FinetuneConfig(seeds=list(range(seeds))))
    # Ray divides a GPU into GPU_PARTS parts; a seed must get a whole number of these parts
    assert share * GPU_PARTS == pytest.approx(round(share * GPU_PARTS))
    assert 0.99 < round(share * GPU_PARTS) * seeds / GPU_PARTS <= 1


OPTIONS = {"width": 4, "form": "sequential", "placement": "both", "scale": 1.0}


@pytest.fixture
def parts(tiny_bert: Path, tmp_path: Path) -> Path:
    """Returns a model with adapters for two domains.

    The prototype of `near` is computed from the task's train split.
    """
    toy(tmp_path / "task", "single_label")
    model = load_model(tiny_bert)
    attach_adapters(model, 2, **OPTIONS)  # type: ignore[arg-type]
    attach_domains(model, ["near", "far"])
    for number in (0, 1):
        draw = torch.Generator().manual_seed(number)
        for parameter in own_parameters(model, number):
            parameter.data = torch.randn(parameter.shape, generator=draw) / 4
    known = domains_of(model)
    assert known is not None
    known.learn("near", prototype_of(model, Split.load(tmp_path / "task", "train").tokens))
    known.learn("far", torch.full((32,), 9.0))

    def enter(config: Any) -> None:
        with_addition(config, "adapters", sets=2, **OPTIONS)
        with_addition(config, "domains", names=["near", "far"])

    save_model(tiny_bert, model.state_dict(), load_tokenizer(tiny_bert), tmp_path / "model", resize=enter)
    return tmp_path / "model"


def run(model: Path, domain: str | None, mode: str = "feature_extraction") -> Any:
    finetune = FinetuneConfig(mode=mode, epochs=1, pooling="mean", domain=domain)  # type: ignore[arg-type]
    config = Config(training=TrainingConfig(precision="fp32"), finetune=finetune)
    return finetune_work(config, Pretrained(model, model), model.parent / "task", 0, model.parent / "out")


@pytest.mark.heavy
def test_the_configured_or_nearest_domain_is_used(parts: Path) -> None:
    nearest, near, far = (run(parts, domain) for domain in (None, "near", "far"))
    assert nearest.predictions == near.predictions != far.predictions
    told = [(found.metrics["domain"], found.metrics["nearest_domain"]) for found in (nearest, near, far)]
    assert told == [("near", "near"), ("near", "near"), ("far", "near")]
    with pytest.raises(ModelError, match="no parts for the domain 'law'"):
        run(parts, "law")


def test_a_domain_is_refused_for_an_ordinary_model(tiny_bert: Path, tmp_path: Path) -> None:
    toy(tmp_path / "task", "single_label")
    config = Config(finetune=FinetuneConfig(domain="law"))
    with pytest.raises(ModelError, match="no domain-specific parts"):
        finetune_work(config, Pretrained(tiny_bert, tiny_bert), tmp_path / "task", 0, tmp_path / "out")


def test_a_model_with_domain_parts_cannot_be_saved(parts: Path) -> None:
    config = Config(finetune=FinetuneConfig(save_model=True, pooling="first"))
    with pytest.raises(ModelError, match=r"finetune.save_model: it carries adapters, domains"):
        finetune_work(config, Pretrained(parts, parts), parts.parent / "task", 0, parts.parent / "out")


FOUND = RunResult(
    metrics={"macro_f1": 0.5},
    curve=[{"epoch": 1, "loss": 0.7, "dev": 0.4}],
    predictions={"dev": [{"id": 0, "label": 1}], "test": [{"id": 0, "label": "é"}, {"id": 1, "label": 0}]},
)


def test_the_driver_reads_it_without_importing_torch(tmp_path: Path) -> None:
    file = tmp_path / "found"
    file.write_bytes(pickle.dumps(FOUND))
    read = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", read, str(file)], capture_output=True, text=True, check=True)
    assert "'adapt.finetune.ray_task'" in done.stdout
    assert "'torch'" not in done.stdout
    assert "'transformers'" not in done.stdout


def test_predictions_and_curve_are_written_line_by_line(tmp_path: Path) -> None:
    FOUND.write(tmp_path)
    for name, file in (("test", PREDICTIONS_FILE), ("dev", DEV_PREDICTIONS_FILE)):
        lines = (tmp_path / file).read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == FOUND.predictions[name]
    assert json.loads((tmp_path / CURVE_FILE).read_text()) == FOUND.curve


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
    # one adapter for each of the 6 linear modules of 2 layers
    assert sum("lora_A" in name for name in trained) == 2 * 6
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
        (tmp_path / "out" / name / "half.safetensors").touch()  # an unfinished file that a killed run left behind
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
        ({"mode": "lora"}, "works only with finetune.mode fine_tune, not with lora"),
        ({"pooling": "mean"}, "no classifier with the same layers for model type 'bert' with finetune.pooling mean"),
    ],
)
def test_models_that_cannot_be_saved_are_refused(tiny_bert: Path, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_savable(tiny_bert, changes.get("mode", "fine_tune"), changes.get("pooling", "first"))


def test_defaults(tiny_bert: Path) -> None:
    few, many = (FinetuneSettings.of(FinetuneConfig(), tiny_bert, "first", number) for number in (5000, 5001))
    assert (few.epochs, many.epochs) == (10, 3)
    assert (few.pooling, few.max_length) == ("first", 128)
    assert few.optimization.learning_rate == 2e-5
    assert FinetuneSettings.of(FinetuneConfig(mode="lora"), tiny_bert, "last", 1).pooling == "last"
    assert FinetuneSettings.of(FinetuneConfig(mode="lora"), tiny_bert, "last", 1).optimization.learning_rate == 2e-4
