"""Tests that the record of an exported model has the metrics of its training and its evaluations."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from adapt.config import Config, EvaluationConfig, ExportConfig, MethodConfig, MtebConfig
from adapt.evaluate.measure_model import LOSSES_FILE, change, mean_loss, read_losses
from adapt.evaluate.measurements import LossChange, Retrieved, Text, TextLoss
from adapt.evaluate.retrieval import QUERIES_FILE
from adapt.model.sentence_vectors import SentenceVectors
from adapt.runner import Done, Finished, Outcome, Stage, Store, ensure
from adapt.show.blocks import Table, TextBlock
from adapt.stage.export_model import Adapted, Export
from adapt.stage.model_evaluation import Evaluated
from adapt.stage.prepare_text import Prepared
from adapt.stage.training_plan import SourceShare
from adapt.stage.training_result import Trained
from adapt.support.errors import ConfigError

CONFIG = Config(name="physics", evaluation=EvaluationConfig(bootstrap_samples=200))
TRAINED = Trained(
    steps=7,
    tokens=12_345,
    tokens_per_s=99.0,
    data_wait_share=0.01,
    device_seconds=70.0,
    flops=1e15,
    mfu=0.25,
    peak_memory_bytes=2**30,
    transductive=False,
    sources={"domain": SourceShare(rows=3, tokens=90, share=1.0)},
)


@dataclass(frozen=True, eq=False)
class ToyText(Stage[Prepared]):
    kind = "prepare"
    name: str

    def what(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        return Outcome(Prepared(9, 99, train_documents=1158, train_tokens=9999, dropped={"few_es": 333}))


@dataclass(frozen=True, eq=False)
class ToyTraining(Stage[Trained]):
    kind = "train"
    name: str
    has_new_head: bool = False
    new_layers: int = 0

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Trained]:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        return Outcome(TRAINED, {"device_seconds": 70.0, "device_hours": 70 / 3600, "cost": 0.04}, {"workers": 2})


@dataclass(frozen=True, eq=False)
class ToyEvaluation(Stage[Evaluated]):
    kind = "evaluate"
    name: str
    documents: Mapping[str, int]
    mean: float
    overlap: int | None

    def what(self) -> Mapping[str, Any]:
        return {"documents": dict(self.documents), "mean": self.mean}

    def run(self, folder: Path, done: Done) -> Outcome[Evaluated]:
        losses, texts = {}, {}
        for name, size in self.documents.items():
            counts = np.random.default_rng(0).integers(1, 40, size)
            sums = counts * np.random.default_rng(size).normal(self.mean, 0.2, size)
            losses[name] = {"losses": sums.tolist(), "counts": counts.tolist()}
            loss = float(sums.sum() / counts.sum()) if size else None
            texts[name] = TextLoss(loss, size, int(counts.sum()), self.overlap, bits_per_byte=self.mean / 4)
        (folder / LOSSES_FILE).write_text(json.dumps(losses))
        return Outcome(Evaluated(texts))


def exported(
    root: Path, after_mean: float = 1.6, training: ToyTraining = ToyTraining("training"), **documents: int
) -> tuple[Export, Finished[Adapted]]:
    """Runs an export stage and returns it with its result.

    Args:
        root: folder of all stages.
        after_mean: mean loss after the training. The mean loss before is 2.0.
        training: the training stage.
        documents: number of measured documents of each text, `domain` or `general`.
    """
    domain, general = ToyText("domain"), ToyText("general") if "general" in documents else None
    before, after = ToyEvaluation("before", documents, 2.0, None), ToyEvaluation("after", documents, after_mean, 0)
    toys: Any = (domain, general, None, training, before, after)
    stage = Export("physics", CONFIG, *toys, False)
    return stage, ensure(stage, Store(root))


def test_the_record_has_losses_before_and_after_with_their_change_and_the_trainings_figures(tmp_path: Path) -> None:
    stage, done = exported(tmp_path, domain=50, general=40)
    before, after = (Store(tmp_path).folder("evaluate", each.name, each.key) for each in (stage.before, stage.after))
    for text in get_args(Text):
        (old, counts), (new, _) = read_losses(before, text), read_losses(after, text)
        assert done.result.losses[text] == LossChange(
            text=text,
            predictions=int(counts.sum()),
            before=mean_loss(old, counts, 200),
            after=mean_loss(new, counts, 200),
            change=change(old, new, counts, 200),
            bits_per_byte_before=0.5,
            bits_per_byte_after=0.4,
            overlap=0,
            documents={"domain": 50, "general": 40}[text],
        )
    assert "| 0.500 | 0.400 |" in (done.path / "README.md").read_text()
    assert {name: done.record.metrics[name] for name in asdict(TRAINED)} == asdict(TRAINED)
    assert done.result.sources == TRAINED.sources
    assert done.record.cost["cost"] == 0.04
    assert done.record.resources["workers"] == 2
    card = (done.path / "README.md").read_text()
    assert "| dropped | 333 of 1,500 documents dropped: few_es 333 |" in card
    assert (done.result.documents, done.result.dropped) == (1167, {"few_es": 333})
    assert TextBlock("Training text: 333 of 1,500 documents dropped: few_es 333.") in done.result.blocks(done.record)
    assert all(each.key in card for each in stage.inputs.values())


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    _, done = exported(tmp_path, domain=50, general=40)
    first = done.result.blocks(done.record)[0]
    assert first == TextBlock(
        "Verdict: better than the model it started from on your domain and general text, beyond chance.", True, True
    )


def test_a_training_that_made_its_domain_worse_is_said_with_the_fix(tmp_path: Path) -> None:
    _, done = exported(tmp_path, after_mean=2.4, domain=50)
    assert done.result.verdict().tone == "worse"
    fix = "Try a lower training.learning_rate, such as 0.0002 instead of 0.0005"
    assert done.result.losses["domain"].fix == fix
    said = [block.text for block in done.result.blocks(done.record) if isinstance(block, TextBlock)]
    assert said[0] == f"Verdict: worse than the model it started from on your domain, beyond chance. {fix}."
    assert said[1].endswith("the training made the model worse on this text.")
    assert fix in (done.path / "README.md").read_text()


def test_random_parts_are_named_only_for_the_training_that_began_with_them(tmp_path: Path) -> None:
    first, later = ToyTraining("training", has_new_head=True, new_layers=2), ToyTraining("training")
    said = []
    for training in (first, later):
        _, done = exported(tmp_path / str(training.new_layers), training=training, domain=50)
        card = (done.path / "README.md").read_text()
        said.append((done.result.verdict().reference, "random head" in card, "top 2 layers" in card))
    assert said == [
        ("the start model with a random head and 2 random layers", True, True),
        ("the model it started from", False, False),
    ]


@pytest.mark.parametrize("documents", [0, 1])
def test_too_little_held_out_text(tmp_path: Path, documents: int) -> None:
    _, done = exported(tmp_path, domain=documents, general=30)
    assert done.result.losses.keys() == {"general"}
    assert "general text" in (done.path / "README.md").read_text()


def test_without_general_text(tmp_path: Path) -> None:
    _, done = exported(tmp_path, domain=20)
    assert done.result.losses.keys() == {"domain"}
    assert done.result.losses["domain"].change.value == pytest.approx(-0.4)


@dataclass(frozen=True, eq=False)
class ToyRetrieval(Stage[Retrieved]):
    kind = "retrieval"
    name: str
    ndcg: float

    def what(self) -> Mapping[str, Any]:
        return {"ndcg": self.ndcg}

    def run(self, folder: Path, done: Done) -> Outcome[Retrieved]:
        values = (self.ndcg + 0.1 * np.random.default_rng(0).normal(size=50)).tolist()
        (folder / QUERIES_FILE).write_text(json.dumps(dict.fromkeys(("recall_at_10", "mrr", "ndcg_at_10"), values)))
        return Outcome(Retrieved(*[float(np.mean(values))] * 3, 0.9, 0.2, 50, 70, "mean", {"repeated": 3}))


def test_retrieval_and_sentence_vectors_are_in_record_card_and_folder(tmp_path: Path) -> None:
    stage, _ = exported(tmp_path / "plain", domain=20)
    retrieved: Any = {"before": ToyRetrieval("before", 0.3), "after": ToyRetrieval("after", 0.5)}
    vectors = SentenceVectors("mean", normalize=True, max_length=64)
    both = replace(stage, vectors=vectors, retrieved=retrieved)
    assert both.key != stage.key
    done = ensure(both, Store(tmp_path))
    change = done.result.retrieval
    assert change is not None
    assert change.measures["ndcg_at_10"].change.value == pytest.approx(0.2)
    assert (change.before.mean_cosine, done.result.pooling) == (0.9, "mean")
    said = [block for block in done.result.blocks(done.record) if isinstance(block, Table)]
    assert "retrieval" in said[0].title
    assert "Rows left out: 3 repeated." in said[0].note
    card = (done.path / "README.md").read_text()
    for text in (
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        "| nDCG@10 | 0.3",
        "Retrieval (nDCG@10) rose",
    ):
        assert text in card
    assert json.loads((done.path / "modules.json").read_text())[2]["type"].endswith("Normalize")
    assert retrieved["after"].key in card


def test_additions_are_not_exported_for_sentence_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default, a model with adapters is exported without files for sentence vectors. Requesting them is an error."""
    stage, _ = exported(tmp_path / "plain", domain=20)
    with_vectors = replace(stage, vectors=SentenceVectors("mean"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"additions": [{"kind": "adapters"}]}))
    assert with_vectors._kept(model) is None
    assert "because it would ignore adapters" in capsys.readouterr().err
    asked = replace(with_vectors, config=replace(CONFIG, export=ExportConfig("mean")))
    assert asked._kept(model) == SentenceVectors("mean")


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"export": ExportConfig("mean")}, "export.sentence_transformers"),
        ({"export": ExportConfig(kinds=["tei"])}, "export.kinds tei"),
        ({"mteb": MtebConfig(tasks=["STS12"])}, "mteb"),
    ],
)
def test_sentence_vectors_of_added_modules_are_refused_before_training(
    wanted: dict[str, Any], named: str, tmp_path: Path
) -> None:
    stage, _ = exported(tmp_path, domain=20)
    with_adapters = replace(CONFIG, method=MethodConfig("adapters"), **wanted)
    with pytest.raises(ConfigError, match=r"method\.kind adapters adds modules") as refused:
        replace(stage, config=with_adapters).refuse_early()
    assert f"remove {named}, or" in str(refused.value.fix)
    replace(stage, config=replace(with_adapters, method=MethodConfig("lora")))._refuse_ignored_modules()
    replace(stage, config=replace(CONFIG, method=MethodConfig("adapters")))._refuse_ignored_modules()
