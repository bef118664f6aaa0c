"""The stage that compares models: what it is made of, what is refused, and the whole job on two tiny models."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import (
    ComparisonConfig,
    Config,
    CorpusConfig,
    EvaluationConfig,
    ModelConfig,
    NamedModel,
    SourceConfig,
    StorageConfig,
    TaskConfig,
    TrainingConfig,
)
from adapt.errors import ConfigError, ModelError
from adapt.runner import Record, Store, ensure
from adapt.stages import Catalogue
from adapt.summary import show_comparison
from tests.samples import sentences


def write(file: Path, texts: list[str], **columns: list[str]) -> str:
    rows = [dict(zip(("text", *columns), values, strict=True)) for values in zip(texts, *columns.values(), strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Two sources, general text, and a model besides the first."""
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\x80\x3e")  # other weights, so another model
    sources = [
        SourceConfig(name=name, paths=write(tmp_path / f"{name}.jsonl", sentences(60, seed=place)))
        for place, name in enumerate(("cells", "code"))
    ]
    return Config(
        name="matrix",
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(sources=sources, heldout_fraction=0.6),
        training=TrainingConfig(sequence_length=32),
        evaluation=EvaluationConfig(
            general_paths=write(tmp_path / "general.jsonl", sentences(35, seed=9)),
            sequence_length=32,
            bootstrap_samples=50,
        ),
        comparison=ComparisonConfig(models=[NamedModel("DAPT", str(other))]),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def task(folder: Path, name: str = "toy", kind: str = "single_label") -> TaskConfig:
    files = {}
    for place, split in enumerate(("train", "dev", "test")):
        texts = sentences(12, seed=20 + place)
        files[split] = write(folder / f"{name}-{split}.jsonl", texts, label=["a", "b"] * 6)
    return TaskConfig(name=name, kind=kind, **files)  # type: ignore[arg-type]


def test_each_model_is_measured_on_every_domain(config: Config) -> None:
    stage = Catalogue(config).compared()
    assert stage.what["models"] == ["base", "DAPT"]
    assert stage.what["domains"] == ["cells", "code", "general"]
    assert list(stage.inputs) == ["loss of base", "loss of DAPT"]
    first, second = stage.inputs.values()
    assert list(first.inputs) == list(second.inputs) == ["cells", "code", "general"]
    assert first.key != second.key


def test_measurements_are_shared_with_other_jobs(config: Config) -> None:
    config = replace(config, evaluation=replace(config.evaluation, general_paths=[]))
    similar = replace(config.similarity, models=[config.model.path, config.comparison.models[0].path])
    evaluations = Catalogue(config).compared().inputs.values()
    inputs = Catalogue(replace(config, similarity=similar)).similarity().inputs.values()
    assert {each.key for each in evaluations} == {each.key for each in inputs if each.stage == "evaluate"}


def test_perplexity_is_measured_where_it_is_asked_for(config: Config) -> None:
    asked = replace(config, comparison=replace(config.comparison, pseudo_perplexity=True))
    assert {each.stage for each in Catalogue(config).compared().inputs.values()} == {"evaluate"}
    assert {each.stage for each in Catalogue(asked).compared().inputs.values()} == {"evaluate", "perplexity"}


def test_features_are_judged_on_tasks_with_one_label(config: Config, tmp_path: Path) -> None:
    tasks = [task(tmp_path), task(tmp_path, "tags", kind="multi_label")]
    stage = Catalogue(replace(config, task=tasks[0], tasks=tasks[1:])).compared()
    judged = [each for each in stage.inputs.values() if each.stage == "neighbours"]
    assert [list(each.inputs) for each in judged] == [["toy"], ["toy"]]


@pytest.mark.parametrize("name", ["base", "DAPT", "a/b", ""])
def test_names_that_cannot_be_are_refused(config: Config, name: str) -> None:
    models = [*config.comparison.models, NamedModel(name, config.model.path)]
    with pytest.raises(ConfigError, match=r"comparison\.models: the name"):
        Catalogue(replace(config, comparison=ComparisonConfig(models=models))).compared()


def test_a_source_cannot_have_the_name_of_the_general_text(config: Config) -> None:
    sources = [replace(config.corpus.sources[0], name="general"), config.corpus.sources[1]]
    with pytest.raises(ConfigError, match=r"corpus\.sources: the name 'general'"):
        Catalogue(replace(config, corpus=replace(config.corpus, sources=sources))).compared()


def test_another_tokenizer_is_refused(config: Config) -> None:
    file = Path(config.comparison.models[0].path) / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "changed": True}))
    with pytest.raises(ModelError, match="has another tokenizer"):
        Catalogue(config).compared()


# --- the whole job


@pytest.fixture
def compared(config: Config, tmp_path: Path, ray_cluster: None) -> Callable[[Config], Record]:
    def run(config: Config) -> Record:
        catalogue = Catalogue(config)
        return ensure(catalogue.compared(), Store(catalogue.root))

    return run


def test_the_whole_job(
    config: Config, tmp_path: Path, compared: Callable[[Config], Record], capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = replace(config.comparison, pseudo_perplexity=True, pseudo_perplexity_documents=3, neighbours=1)
    record = compared(replace(config, comparison=comparison, task=task(tmp_path)))
    metrics = record.metrics
    assert metrics["models"] == ["base", "DAPT"]
    assert [len(row) for row in metrics["loss"]] == [3, 3]
    assert metrics["change"][0] == [0.0, 0.0, 0.0]
    for place in range(3):
        assert metrics["change"][1][place] == pytest.approx(metrics["loss"][1][place] - metrics["loss"][0][place])
    assert metrics["documents"]["general"] == 35  # all of it is held out
    assert set(metrics["pseudo_perplexity"]) == {"cells", "code", "general"}
    assert all(0 <= share <= 1 for share in metrics["knn"]["toy"].values())
    capsys.readouterr()
    show_comparison(record)
    shown = capsys.readouterr().err
    for expected in ("general", "DAPT", "change against base", "nearest neighbours", "pseudo-perplexity", "matrix.png"):
        assert expected in shown
    assert f"{metrics['change'][1][0]:+.3f}" in shown
