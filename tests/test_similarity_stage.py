"""The stage that compares domains: what it is made of, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    EvaluationConfig,
    ModelConfig,
    SimilarityConfig,
    SourceConfig,
    StorageConfig,
    TrainingConfig,
)
from adapt.errors import ConfigError, ModelError
from adapt.stages import Catalogue


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Two sources."""
    sources = []
    for name in ("cells", "code"):
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps({"text": f"a text about {name}"}) + "\n")
        sources.append(SourceConfig(name=name, paths=str(file)))
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(sources=sources),
        training=TrainingConfig(sequence_length=32),
        evaluation=EvaluationConfig(sequence_length=32),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def with_models(config: Config, *models: Path) -> Config:
    return replace(config, similarity=SimilarityConfig(models=[str(model) for model in models]))


def test_without_models_it_needs_the_prepared_sources_alone(config: Config) -> None:
    stage = Catalogue(config).similarity()
    assert list(stage.inputs) == ["cells", "code"]
    assert {needed.stage for needed in stage.inputs.values()} == {"prepare"}


def test_each_model_is_measured_on_all_sources(config: Config, tiny_bert: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")  # other weights, so another model
    stage = Catalogue(with_models(config, tiny_bert, other)).similarity()
    evaluations = [needed for needed in stage.inputs.values() if needed.stage == "evaluate"]
    assert [list(evaluation.inputs) for evaluation in evaluations] == [["cells", "code"]] * 2
    assert evaluations[0].key != evaluations[1].key
    assert stage.key != Catalogue(config).similarity().key


def test_one_domain_or_another_number_of_models_is_refused(config: Config, tiny_bert: Path) -> None:
    alone = replace(config, corpus=replace(config.corpus, sources=config.corpus.sources[:1]))
    for wrong in (alone, with_models(config, tiny_bert)):
        with pytest.raises(ConfigError, match=r"sources and \d models to compare"):
            Catalogue(wrong).similarity()


def test_models_of_different_tokenizers_are_refused(config: Config, tiny_bert: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["changed"] = True
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="has another tokenizer"):
        Catalogue(with_models(config, tiny_bert, other)).similarity()
