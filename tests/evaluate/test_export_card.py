"""Tests the exported model and its model card."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from adapt.config import Config, CorpusConfig, EvaluationConfig, MethodConfig, ModelConfig, TaptConfig, TaskConfig
from adapt.evaluate.card_metadata import card_head
from adapt.evaluate.export_card import (
    CardFacts,
    Handover,
    card_verdict,
    loss_changes,
    model_card,
    write_card,
    write_model,
)
from adapt.evaluate.measure_model import LOSSES_FILE, change, mean_loss, read_losses
from adapt.evaluate.measurements import Estimate, LossChange, MeasureChange, RetrievalChange, Retrieved, Text, TextLoss
from adapt.model.model_card import front_matter
from adapt.runner import Record
from adapt.show.blocks import NONE

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


@dataclass(frozen=True)
class Rehearsal:
    """Options of a user-defined method."""

    share: float = 0.05


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
def handed(tmp_path: Path) -> Callable[..., Handover]:
    """Returns a function that builds a `Handover` from records of finished stages.

    The function's keyword arguments `domain` and `general` are the numbers of documents on which losses were measured.
    """

    def make(**documents: int) -> Handover:
        text = record(
            tmp_path / "domain",
            "prepare",
            KEYS["domain"],
            metrics={"train_documents": 1000, "train_tokens": 50_000},
            inputs={
                "files.listing": {"stage": "manifest", "key": KEYS["manifest"], "path": str(tmp_path / "manifest")}
            },
        )
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
        (model / "config.json").write_text('{"model_type": "bert"}')
        evaluations = []
        for seed, (label, means) in enumerate({"before": (2.0, 1.5), "after": (1.6, 1.7)}.items()):
            evaluations.append(record(tmp_path / label, "evaluate", label * 10))
            measured = {name: losses(seed, mean, documents[name]) for name, mean in zip(documents, means, strict=False)}
            (tmp_path / label / LOSSES_FILE).write_text(json.dumps(measured))
        texts = {name: TextLoss(None, number, 0, None) for name, number in documents.items()}
        changes = loss_changes((tmp_path / "before", texts), (tmp_path / "after", texts), 200)
        return Handover(CONFIG, training, text, False, False, changes, [text, training, *evaluations])

    return make


Make = Callable[..., Handover]


def handed_over(handover: Handover, folder: Path) -> str:
    """Exports the model to a folder and returns the text of its card."""
    folder.mkdir(exist_ok=True)
    write_model(handover.training.path / "model", handover.vectors, folder)
    write_card(handover, folder)
    return (folder / "README.md").read_text()


def test_a_card_without_measurements(handed: Make, tmp_path: Path) -> None:
    assert "not measured" in handed_over(handed(), tmp_path / "out").lower()


def test_model_files_and_card(handed: Make, tmp_path: Path) -> None:
    out = tmp_path / "out"
    card = handed_over(handed(domain=50), out)
    model = tmp_path / "training" / "model"
    assert {file.name for file in out.iterdir()} == {file.name for file in model.iterdir()}
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (model / name).read_bytes()
        # Both names refer to the same file (hard link), so the export takes no further disk space.
        assert (out / name).stat().st_ino == (model / name).stat().st_ino
    # Writing the card into the export must not overwrite the README.md of the trained model.
    assert (model / "README.md").read_text() == "the trained model's README.md"

    for said in (
        "base_model: owner/base-model",
        "# physics",
        "a.jsonl, b.jsonl",
        "Held-out loss on the domain fell from",
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


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (CorpusConfig(source="docstrings"), "docstrings"),
        (CorpusConfig(paths="https://me:secret@host/a.jsonl?sign=x"), "https://host/a.jsonl"),
    ],
)
def test_the_card_names_the_source_of_the_text(handed: Make, tmp_path: Path, source: CorpusConfig, named: str) -> None:
    card = handed_over(replace(handed(domain=5), config=Config(corpus=source)), tmp_path / "out")
    assert f"| source | {named} |" in card


def test_the_card_describes_the_text_of_tasks(handed: Make, tmp_path: Path) -> None:
    config = Config(task=TaskConfig(name="cells"), tapt=TaptConfig(transductive=True))
    handover = replace(handed(domain=5), config=config, is_of_tasks=True, is_transductive=True)
    assert "| source | text of all splits (transductive) of cells, without labels |" in handed_over(
        handover, tmp_path / "out"
    )


def test_the_card_names_the_method_and_its_options(handed: Make, tmp_path: Path) -> None:
    handover = handed(domain=5)
    start = {"start.training": {"stage": "train", "key": "k", "path": "runs/train/before"}}
    config = replace(CONFIG, method=MethodConfig(kind="mine.rehearse:MyRehearsal"), method_options=Rehearsal())
    card = handed_over(
        replace(handover, config=config, training=replace(handover.training, inputs=start)), tmp_path / "out"
    )
    for said in ("| started from the model in | runs/train/before |", "| my_rehearsal.share | 0.05 |"):
        assert said in card


def test_an_export_replaces_the_files_of_a_killed_run(handed: Make, tmp_path: Path) -> None:
    handover, out = handed(domain=50), tmp_path / "out"
    handed_over(handover, out)
    content = {file.name: file.read_bytes() for file in out.iterdir()}
    (out / "model.safetensors").unlink()
    (out / "model.safetensors").write_text("half")
    (out / "README.md").write_text("half")
    handed_over(handover, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == content
    assert (tmp_path / "training" / "model" / "model.safetensors").read_text().startswith("the trained")


def test_copies_where_files_cannot_be_linked(handed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    handed_over(handed(domain=50), tmp_path / "out")
    shutil.rmtree(tmp_path / "training")
    assert (tmp_path / "out" / "model.safetensors").read_text() == "the trained model's model.safetensors"


def test_the_card_shows_losses_and_changes(handed: Make, tmp_path: Path) -> None:
    (found,) = handed(domain=50).changes
    before, counts = read_losses(tmp_path / "before", "domain")
    after, _ = read_losses(tmp_path / "after", "domain")
    expected = {
        "before": mean_loss(before, counts, 200),
        "after": mean_loss(after, counts, 200),
        "change": change(before, after, counts, 200),
    }
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.before.value == pytest.approx(2.0, abs=0.1)
    assert found.change.value == pytest.approx(-0.4, abs=0.1)


def test_the_change_of_a_model_against_itself(handed: Make, tmp_path: Path) -> None:
    handed(domain=50)
    alone = tmp_path / "before", {"domain": TextLoss(None, 50, 0, None)}
    (found,) = loss_changes(alone, alone, 100)
    assert found.before == found.after
    assert found.change == Estimate(0, 0, 0)
    assert found.predictions == sum(losses(0, 2.0, 50)["counts"])


def test_documents_that_chose_the_model_are_left_out_of_the_change(handed: Make, tmp_path: Path) -> None:
    handed(domain=50)
    both = [(tmp_path / label, {"domain": TextLoss(None, 50, 0, None)}) for label in ("before", "after")]
    (found,) = loss_changes(*both, 100, chose={"domain": (20, 1.5)})
    (before, counts), (after, _) = (read_losses(folder, "domain") for folder, _ in both)
    assert found.chose == 1.5
    assert found.before.value == pytest.approx(before[20:].sum() / counts[20:].sum())
    assert found.after.value == pytest.approx(after[20:].sum() / counts[20:].sum())
    assert found.predictions == counts[20:].sum()
    assert loss_changes(*both, 100, chose={"domain": (49, 1.5)}) == []


def result(text: Text, before: float, after: float, half: float = 0.05) -> LossChange:
    estimates = [Estimate(value, value - half, value + half) for value in (before, after, after - before)]
    return LossChange(text, 123456, *estimates)


def facts(**changes: Any) -> CardFacts:
    values: dict[str, Any] = {
        "name": "bert-chem",
        "base_model": "FacebookAI/roberta-base",
        "corpus": {"source": "a|b {x}", "documents": 1200, "tokens": 3400000, "digest": "abc123"},
        "objective": "mlm",
        "training": {"learning_rate": 5e-4, "max_steps": 12500},
        "results": [result("domain", 4.0, 3.0), result("general", 3.0, 3.2)],
        "lineage": [("prepare", "k1", "runs/prepare"), ("train", "k2", "p")],
        "packages": {"torch": "2.13.0"},
        **changes,
    }
    return CardFacts(**values)


def test_front_matter_is_valid_for_the_hub() -> None:
    data = ModelCard(model_card(facts())).data.to_dict()
    assert data["base_model"] == "FacebookAI/roberta-base"
    assert data["library_name"] == "transformers"
    assert data["pipeline_tag"] == "fill-mask"
    assert "license" not in data
    assert "domain-adaptation" in data["tags"]


def test_the_hub_shows_each_loss_under_its_text() -> None:
    found = yaml.safe_load(model_card(facts()).split("---")[1])["model-index"][0]["results"]
    shown = {
        result["dataset"]["name"]: {measured["type"]: measured["value"] for measured in result["metrics"]}
        for result in found
    }
    assert shown == {
        "held-out text of the domain": {"loss": 3.0, "perplexity": pytest.approx(math.exp(3), abs=1e-3)},
        "held-out text of the general corpus": {"loss": 3.2, "perplexity": pytest.approx(math.exp(3.2), abs=1e-3)},
    }
    assert [result["dataset"]["config"] for result in found] == ["domain", "general"]


def test_values_that_are_not_finite_are_left_out_of_the_front_matter() -> None:
    changes = [result("domain", 4.0, math.nan), result("general", 3.0, math.inf)]
    measures = {"ndcg_at_10": MeasureChange(Estimate(0.5), Estimate(math.nan), Estimate(math.nan))}
    retrieval = RetrievalChange(measures, *[Retrieved(0.5, 0.5, 0.5, 0.1, 0.9, 9, 9, "mean")] * 2)
    front = yaml.safe_load(card_head("bert-chem", "a/b", "fill-mask", "transformers", changes, retrieval, {}))
    assert "model-index" not in front
    front = yaml.safe_load(model_card(facts(results=[*changes[:1], result("general", 3.0, 3.2)])).split("---")[1])
    assert [found["dataset"]["config"] for found in front["model-index"][0]["results"]] == ["general"]


@pytest.mark.parametrize("path", ["demo:bert-tiny", "/models/mine", "./mine", "../a", "~/mine"])
def test_base_model_that_is_no_id_is_named_in_the_text_only(path: str) -> None:
    card = model_card(facts(base_model=path))
    assert "base_model" not in yaml.safe_load(card.split("---")[1])
    assert f"`{path}` adapted to a domain by masked language modelling" in card


def test_a_local_folder_in_the_form_of_an_id_is_not_named_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"base_model": "models/bert", "metadata": {"datasets": ["data/papers", "ag_news/small"]}}
    named = yaml.safe_load(model_card(facts(**said)).split("---")[1])
    assert (named["base_model"], named["datasets"]) == ("models/bert", ["data/papers", "ag_news/small"])
    for folder in ("models/bert", "data/papers"):
        (tmp_path / folder).mkdir(parents=True)
    front = yaml.safe_load(model_card(facts(**said)).split("---")[1])
    assert "base_model" not in front
    assert front["datasets"] == ["ag_news/small"]
    assert "base_model" not in front_matter("models/bert", "fill-mask")


def test_a_model_with_additions_is_not_loaded_by_transformers_alone() -> None:
    card = model_card(facts(additions=["adapters", "exbert"], objective="causal"))
    assert "carries adapters, exbert in addition to its architecture" in card
    assert "load_model(Path(folder), causal=True)" in card
    assert "from_pretrained(folder)\ntokenizer" not in card


def test_a_model_with_parts_for_domains_says_how_to_choose_them() -> None:
    card = model_card(facts(additions=["adapters"], domains=["cs", "bio"]))
    assert "parts for each of these domains: cs, bio." in card
    assert "load_model(Path(folder), causal=False, domain='bio')" in card
    assert "domain=" not in model_card(facts(additions=["adapters"]))


def test_every_fact_is_in_the_card() -> None:
    card = model_card(facts())
    for cell in ("bert-chem", "a\\|b {x}", "1,200", "3,400,000", "abc123", "0.0005", "12,500", "2.13.0"):
        assert cell in card, cell
    assert "| prepare | k1 | runs/prepare |" in card
    assert "AutoModelForMaskedLM.from_pretrained" in card
    headings = re.findall("^## (.*)$", card, re.MULTILINE)
    assert headings == [
        "What it was adapted on", "How to load it", "Results", "Training settings", "Lineage", "Package versions"
    ]  # fmt: skip


def test_results_give_losses_with_intervals() -> None:
    row = next(line for line in model_card(facts()).splitlines() if line.startswith("| domain"))
    assert "4.000 (3.950 to 4.050)" in row
    assert "3.000 (2.950 to 3.050)" in row
    assert "-1.000 (-1.050 to -0.950)" in row


def test_a_detectors_loss_is_named_and_has_no_perplexity() -> None:
    figures = {"replaced": 0.1, "recall": 0.25, "precision": 0.5, "auc": 0.75}
    found = replace(result("domain", 0.5, 0.3), of="replaced-token detection", figures_after=figures)
    card = model_card(facts(objective="rtd", results=[found]))
    assert "Held-out loss of replaced-token detection on the domain fell from 0.50 to 0.30 nats per token" in card
    assert "ranks a replaced token above an original one with probability 0.750" in card
    row = next(line for line in card.splitlines() if line.startswith("| domain"))
    assert row.endswith(f"| {NONE} | 25.0% | {NONE} | 50.0% | {NONE} | 0.750 |")
    assert "perplexity" not in card
    assert 'AutoModelForMaskedLM.from_pretrained(f"{folder}/generator")' in card


def test_few_documents_have_no_intervals_and_no_verdict() -> None:
    few = LossChange("domain", 9, Estimate(4), Estimate(3), Estimate(-1))
    assert card_verdict([few]) == (
        "Held-out loss on the domain went from 4.00 to 3.00 nats per token. Too few documents are held out for a 95% "
        "interval of the change."
    )
    row = next(line for line in model_card(facts(results=[few])).splitlines() if line.startswith("| domain"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["4.000", "3.000", "-1.000", NONE, NONE]


def test_the_verdict_follows_the_intervals() -> None:
    assert card_verdict([result("domain", 4.0, 3.0), result("general", 3.0, 3.2)]) == (
        "Held-out loss on the domain fell from 4.00 to 3.00 nats per token (95% interval of the change: -1.05 to "
        "-0.95). Loss on general text rose from 3.00 to 3.20 nats per token (95% interval of the change: +0.15 to "
        "+0.25): the model forgot general text."
    )
    undecided = card_verdict([result("domain", 4.0, 3.99)])
    assert undecided == (
        "Held-out loss on the domain did not change measurably: 4.00 nats per token before and 3.99 after (95% "
        "interval of the change: -0.06 to +0.04)."
    )
    worse = "the training made the model worse on this text. Try a lower training.learning_rate."
    assert card_verdict([result("domain", 4.0, 4.2)]).endswith(worse)
    assert card_verdict([result("general", 3.0, 3.0)]).endswith("The model did not measurably forget general text.")
    assert card_verdict([result("general", 3.0, 2.0)]).endswith(": the model did not forget it.")
    assert card_verdict([]).startswith("Its effect was not measured: fewer than two documents are held out")
    assert "| text |" not in model_card(facts(results=[]))
    assert "Not measured: fewer than two documents are held out" in model_card(facts(results=[]))
    of_general = model_card(facts(results=[result("general", 3.0, 3.2)]))
    assert "The loss on the domain was not measured: fewer than two documents are held out" in of_general


def test_the_card_warns_of_unknown_words() -> None:
    assert "**Note:**" not in model_card(facts())
    assert "**Note:** the tokenizer does not know 32%." in model_card(
        facts(remarks=["the tokenizer does not know 32%"])
    )


def test_a_turned_decoder_is_loaded_by_its_config() -> None:
    card = model_card(facts(objective="mntp"))
    assert "pipeline_tag: feature-extraction" in card
    assert "AutoModel.from_pretrained(folder)" in card
    assert "`is_causal: false`" in card
    assert "AutoModelForMaskedLM" not in card
