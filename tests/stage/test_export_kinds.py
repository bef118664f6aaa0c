"""Tests exports for other libraries: files, record, model card, stage key, and early errors."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard

from adapt.config import Config, CorpusConfig, EvaluationConfig, ExportConfig, ModelConfig, TaskConfig
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage, Store, ensure
from adapt.runner.digest import Digests
from adapt.show.blocks import Table
from adapt.stage.context import Context
from adapt.stage.export_model import Export, labelled_text
from adapt.stage.text_sources import TaskSplit
from adapt.stage.training_result import Trained
from adapt.support.errors import ConfigError, DataError
from tests.samples import labelled, write
from tests.stage.test_export_model import TRAINED, ToyEvaluation, ToyText

OWN = "tests.handover.test_table:Noted"


@dataclass(frozen=True, eq=False)
class TrainingOf(Stage[Trained]):
    """A training stage that does not change the model."""

    kind = "train"
    name: str
    start: Any
    has_new_head: bool = False
    new_layers: int = 0

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Trained]:
        shutil.copytree(self.start.pretrained.model, folder / "model")
        return Outcome(TRAINED)


def export(model: Path, **settings: Any) -> Export:
    config = Config(
        name="physics",
        model=ModelConfig(path="google-bert/bert-base-uncased"),
        corpus=CorpusConfig(source="dataset", dataset="ag_news/small"),
        evaluation=EvaluationConfig(bootstrap_samples=50),
        export=ExportConfig(**settings),
    )
    documents = {"domain": 50}
    training = TrainingOf("training", SimpleNamespace(pretrained=SimpleNamespace(model=model)))
    before, after = ToyEvaluation("before", documents, 2.0, None), ToyEvaluation("after", documents, 1.6, 0)
    toys: Any = (ToyText("domain"), None, None, training, before, after)
    return Export("physics", config, *toys, False)


def test_kinds_share_the_weights_and_are_in_record_result_and_card(tiny_bert: Path, tmp_path: Path) -> None:
    stage = export(tiny_bert, kinds=["transformers", "gliner", OWN], license="mit", language="en")
    done = ensure(stage, Store(tmp_path))
    assert [handed.kind for handed in done.result.handed] == ["transformers", "gliner", "noted"]
    tables = [block for block in done.result.blocks(done.record) if isinstance(block, Table)]
    assert tables[-1].rows[1][:2] == ["gliner", "gliner/gliner_config.json"]
    trained = Store(tmp_path).folder("train", "training", stage.training.key) / "model"
    assert (done.path / "model.safetensors").stat().st_ino == (trained / "model.safetensors").stat().st_ino
    assert [file.name for file in done.path.rglob("*.safetensors")] == ["model.safetensors"]
    card = (done.path / "README.md").read_text()
    assert "Read noted.txt." in card
    assert 'GLiNER.from_config("gliner/gliner_config.json"' in card


def test_the_head_of_the_card_is_valid_and_has_the_losses(tiny_bert: Path, tmp_path: Path) -> None:
    done = ensure(export(tiny_bert, license="mit", language=["en", "de"]), Store(tmp_path))
    data = ModelCard((done.path / "README.md").read_text(), ignore_metadata_errors=False).data
    assert (data.license, data.language, data.datasets) == ("mit", ["en", "de"], ["ag_news/small"])
    assert data.base_model == "google-bert/bert-base-uncased"
    loss, perplexity = data.eval_results
    assert (loss.metric_type, loss.dataset_type, loss.dataset_split) == ("loss", "ag_news/small", "held-out")
    assert loss.metric_value == pytest.approx(done.result.losses["domain"].after.value, abs=1e-4)
    assert perplexity.metric_value == pytest.approx(2.718281828**loss.metric_value, rel=1e-3)


def test_kinds_and_metadata_change_the_key_and_a_push_does_not(tiny_bert: Path, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", labelled(20, 0))
    plain = export(tiny_bert)
    task = TaskConfig(train=str(tmp_path / "train.jsonl"))
    split = TaskSplit.of(task, "train", Digests.below(tmp_path))
    keys = {
        plain.key,
        export(tiny_bert, kinds=["gliner"]).key,
        export(tiny_bert, kinds=[OWN]).key,
        export(tiny_bert, license="mit").key,
        replace(export(tiny_bert, kinds=["gliner"]), labelled=split).key,
    }
    assert len(keys) == 5
    assert export(tiny_bert, push="me/physics", private=False).key == plain.key
    assert {*plain.what()} == {"bootstrap_samples"}


def test_a_train_split_that_setfit_cannot_learn_is_refused_when_the_stages_are_built(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """Before, the export failed after the training."""
    file = write(tmp_path / "train.jsonl", [{"text": text, "label": "heart"} for text in ("one", "two")])
    config = Config(task=TaskConfig(train=file), export=ExportConfig(kinds=["setfit"]))
    context = Context(config, Start(Pretrained(tiny_bert, tiny_bert), None), Digests.below(tmp_path))
    with pytest.raises(DataError, match="has only one class, heart"):
        labelled_text(context)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"kinds": ["gguf"]}, "so it cannot be exported as gguf"),
        ({"kinds": ["vllm"]}, "bert is trained as an encoder"),
        ({"license": "apache"}, r"'apache' is not a licence identifier of the Hugging .*\n.*did you mean apache-2.0"),
        ({"language": "English"}, "'English' is not a language code"),
    ],
)
def test_what_the_model_cannot_have_is_refused_before_the_training(
    settings: dict[str, Any], fault: str, tiny_bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=fault):
        ensure(export(tiny_bert, **settings), Store(tmp_path))
    assert not (tmp_path / "train").exists()
