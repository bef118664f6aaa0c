"""The folder that is handed over: model, card, and what was gained and lost."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import Config, CorpusConfig, EvaluationConfig, ModelConfig
from adapt.evaluate.export import comparison, examples, export
from adapt.evaluate.measure import EXAMPLES_FILE, LOSSES_FILE, read_losses
from adapt.evaluate.statistics import change, mean_loss
from adapt.runner import Outcome, Record

CONFIG = Config(
    name="physics",
    seed=3,
    model=ModelConfig(path="owner/base-model"),
    corpus=CorpusConfig(paths=["a.jsonl", "b.jsonl"]),
    evaluation=EvaluationConfig(bootstrap_samples=200),
)
TRAINED = {"steps": 7, "tokens": 12_345, "tokens_per_s": 99.0, "data_wait_share": 0.01, "device_seconds": 70.0}
TRAINED |= {"mfu": 0.25, "flops": 1e15, "peak_memory_bytes": 2**30}
KEYS = {name: f"{number}" * 64 for number, name in enumerate(("manifest", "domain", "general", "training"))}


def record(path: Path, stage: str, key: str, **values: Any) -> Record:
    fields: dict[str, Any] = {"what": {}, "inputs": {}, "metrics": {}, "cost": {}, "resources": {}, "outputs": {}}
    fields |= {"packages": {"torch": "9.9"}, "started_at": "2024-01-01T00:00:00+00:00"} | values
    path.mkdir(parents=True, exist_ok=True)
    return Record(stage=stage, name="physics", key=key, version=1, path=path, **fields)


def losses(seed: int, mean: float, documents: int) -> dict[str, list[float]]:
    draw = np.random.default_rng(seed)
    counts = np.random.default_rng(0).integers(1, 40, documents)
    return {"losses": (counts * draw.normal(mean, 0.2, documents)).tolist(), "counts": counts.tolist()}


@pytest.fixture
def stages(tmp_path: Path) -> Callable[..., dict[str, Record]]:
    """The inputs of an export as finished stages leave them, with so many documents measured."""

    def make(**documents: int) -> dict[str, Record]:
        corpora = {
            name: record(
                tmp_path / name,
                "prepare",
                KEYS[name],
                metrics={"train_documents": 1000, "train_tokens": 50_000},
                inputs={"manifest": {"stage": "manifest", "key": KEYS["manifest"], "path": str(tmp_path / "manifest")}},
            )
            for name in documents
        }
        training = record(
            tmp_path / "training",
            "train",
            KEYS["training"],
            metrics=TRAINED,
            cost={"seconds": 80.0, "device_seconds": 70.0, "device_hours": 0.019444, "cost": 0.038},
            resources={"workers": 2, "device": "CPU"},
        )
        model = training.path / "model"
        model.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
            (model / name).write_text(f"the trained model's {name}")
        evaluations = {}
        for seed, (label, means) in enumerate({"before": (2.0, 1.5), "after": (1.6, 1.7)}.items()):
            measured = {name: losses(seed, mean, documents[name]) for name, mean in zip(documents, means, strict=False)}
            metrics: dict[str, int | None] = {f"{name}_documents": count for name, count in documents.items()}
            metrics |= {f"{name}_overlap": None if label == "before" else 0 for name in documents}
            evaluations[label] = record(tmp_path / label, "evaluate", label * 10, metrics=metrics)
            (tmp_path / label / LOSSES_FILE).write_text(json.dumps(measured))
        return {**corpora, "training": training, **evaluations}

    return make


Make = Callable[..., dict[str, Record]]


def exported(inputs: dict[str, Record], folder: Path) -> Outcome:
    folder.mkdir(exist_ok=True)
    return export(CONFIG, folder, inputs)


def test_metrics(stages: Make, tmp_path: Path) -> None:
    inputs = stages(domain=50, general=40)
    outcome = exported(inputs, tmp_path / "out")
    before, counts = read_losses(tmp_path / "before", "domain")
    after, _ = read_losses(tmp_path / "after", "domain")
    expected = {
        "before": mean_loss(before, counts, 200),
        "after": mean_loss(after, counts, 200),
        "change": change(before, after, counts, 200),
    }
    for name, estimate in expected.items():
        assert outcome.metrics[f"heldout_loss_{name}"] == estimate.value
        assert outcome.metrics[f"heldout_loss_{name}_low"] == estimate.low
        assert outcome.metrics[f"heldout_loss_{name}_high"] == estimate.high
    assert outcome.metrics["heldout_loss_before"] == pytest.approx(2.0, abs=0.1)
    assert outcome.metrics["heldout_loss_change"] == pytest.approx(-0.4, abs=0.1)
    assert outcome.metrics["general_loss_change"] == pytest.approx(0.2, abs=0.1)
    names = {f"{corpus}_loss_{name}{end}" for corpus in ("heldout", "general") for name in expected for end in ENDS}
    assert outcome.metrics.keys() == names | TRAINED.keys() | {"heldout_overlap", "general_overlap"}
    assert outcome.metrics["heldout_overlap"] == outcome.metrics["general_overlap"] == 0
    assert {name: outcome.metrics[name] for name in TRAINED} == TRAINED
    assert outcome.cost == inputs["training"].cost
    assert outcome.resources == inputs["training"].resources
    json.dumps(outcome.metrics)


ENDS = ("", "_low", "_high")


@pytest.mark.parametrize("documents", [0, 1])
def test_too_little_held_out_text(stages: Make, tmp_path: Path, documents: int) -> None:
    outcome = exported(stages(domain=documents, general=30), tmp_path / "out")
    assert outcome.metrics["heldout_loss_before"] is None
    assert outcome.metrics["heldout_loss_after"] is None
    assert outcome.metrics["general_loss_change"] > 0
    assert "general text" in (tmp_path / "out" / "README.md").read_text()


def test_nothing_measured_at_all(stages: Make, tmp_path: Path) -> None:
    exported(stages(domain=0), tmp_path / "out")
    assert "not measured" in (tmp_path / "out" / "README.md").read_text().lower()


def test_model_files_and_card(stages: Make, tmp_path: Path) -> None:
    inputs = stages(domain=50)
    out = tmp_path / "out"
    exported(inputs, out)
    model = tmp_path / "training" / "model"
    assert {file.name for file in out.iterdir()} == {file.name for file in model.iterdir()}
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (model / name).read_bytes()
        assert (out / name).stat().st_ino == (model / name).stat().st_ino  # no second copy
    assert (model / "README.md").read_text() == "the trained model's README.md"  # the card did not go through the link

    card = (out / "README.md").read_text()
    for said in (
        'base_model: "owner/base-model"',
        "# physics",
        "a.jsonl, b.jsonl",
        "held-out loss fell by",
        "50,000",
        "12,345",
        "| learning_rate | 0.0005 |",
        "| objective.mask_fraction | 0.15 |",
        "| seed | 3 |",
        "| workers | 2 |",
        "| device-hours | 0.0194 |",
        "| cost | 0.04 |",
        "| model FLOPs utilization | 25.0% |",
        "| torch | 9.9 |",
        KEYS["manifest"],
        KEYS["domain"],
        KEYS["training"],
        str(tmp_path / "before"),
    ):
        assert said in card, said


def test_docstrings_are_named_as_the_source(stages: Make, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(Config(corpus=CorpusConfig(source="docstrings")), tmp_path / "out", stages(domain=5))
    assert "| source | docstrings |" in (tmp_path / "out" / "README.md").read_text()


def test_again_over_the_leftovers_of_a_run_that_died(stages: Make, tmp_path: Path) -> None:
    inputs = stages(domain=50)
    out = tmp_path / "out"
    first = exported(inputs, out)
    content = {file.name: file.read_bytes() for file in out.iterdir()}
    (out / "model.safetensors").unlink()
    (out / "model.safetensors").write_text("half")
    (out / "README.md").write_text("half")
    assert exported(inputs, out) == first
    assert {file.name: file.read_bytes() for file in out.iterdir()} == content
    assert (tmp_path / "training" / "model" / "model.safetensors").read_text().startswith("the trained")


def test_copies_where_files_cannot_be_linked(stages: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    exported(stages(domain=50), tmp_path / "out")
    shutil.rmtree(tmp_path / "training")
    assert (tmp_path / "out" / "model.safetensors").read_text() == "the trained model's model.safetensors"


def test_comparison_of_a_model_with_itself(stages: Make, tmp_path: Path) -> None:
    stages(domain=50)
    result = comparison("domain", tmp_path / "before", tmp_path / "before", 100)
    assert result["before"] == result["after"]
    assert (result["change"], result["change_low"], result["change_high"]) == (0, 0, 0)
    assert result["predictions"] == sum(losses(0, 2.0, 50)["counts"])


def test_examples_side_by_side(tmp_path: Path) -> None:
    for label in ("before", "after"):
        (tmp_path / label).mkdir()
        filled = [{"text": f"t{i} [MASK]", "answer": f"a{i}", "guesses": [[label, 0.5]]} for i in range(3)]
        (tmp_path / label / EXAMPLES_FILE).write_text(json.dumps(filled))
    inputs = {
        label: {"stage": "evaluate", "key": label, "path": str(tmp_path / label)} for label in ("before", "after")
    }
    shown = examples(record(tmp_path / "out", "export", "0" * 64, inputs=inputs))
    assert len(shown) == 3
    assert shown[1] == {"text": "t1 [MASK]", "answer": "a1", "before": [["before", 0.5]], "after": [["after", 0.5]]}
