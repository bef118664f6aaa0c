"""Tests the stages of the similarity job, which compares domains, and refused configurations. Nothing is run."""

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
from adapt.job.measuring_jobs import similarity_stages
from adapt.stage.context import Context
from adapt.stage.model_evaluation import Similarity
from adapt.support.errors import ConfigError, ModelError
from tests.model.checkpoints import exchange_tokens
from tests.samples import write


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Returns a configuration with two sources."""
    sources = [
        SourceConfig(name, paths=write(tmp_path / f"{name}.jsonl", [{"text": f"a text about {name}"}]))
        for name in ("cells", "code")
    ]
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(sources=sources),
        training=TrainingConfig(sequence_length=32),
        evaluation=EvaluationConfig(sequence_length=32),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def built(config: Config, *models: Path) -> Similarity:
    named = SimilarityConfig(models=[str(model) for model in models])
    return similarity_stages(Context.of(replace(config, similarity=named)))


def test_without_models_it_only_needs_the_prepared_sources(config: Config) -> None:
    stage = built(config)
    assert list(stage.inputs) == ["corpora.cells", "corpora.code"]
    assert {needed.kind for needed in stage.inputs.values()} == {"prepare"}
    assert stage.needs() == {"CPU": 1}


def test_each_model_is_measured_on_all_sources(config: Config, tiny_bert: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")  # Changed weights make it a different model.
    stage = built(config, tiny_bert, other)
    evaluations = list(stage.evaluations.values())
    assert [list(evaluation.corpora) for evaluation in evaluations] == [["cells", "code"]] * 2
    assert evaluations[0] != evaluations[1]
    assert set(evaluations) < set(stage.inputs.values())
    assert stage != built(config)


def test_a_single_domain_or_a_wrong_number_of_models_is_refused(config: Config, tiny_bert: Path) -> None:
    alone = replace(config, corpus=replace(config.corpus, sources=config.corpus.sources[:1]))
    for wrong, models in ((alone, []), (config, [tiny_bert])):
        with pytest.raises(ConfigError, match=r"sources and \d models to compare"):
            built(wrong, *models)


def test_models_with_different_tokenizers_are_refused(config: Config, tiny_bert: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    exchange_tokens(other)
    with pytest.raises(ModelError, match="have different tokenizers"):
        built(config, tiny_bert, other)
