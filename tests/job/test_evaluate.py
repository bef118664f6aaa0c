"""Tests the evaluate job, which compares models: stages, refused configurations, and a whole run on two tiny models."""

import json
import shutil
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
from adapt.job.measuring_jobs import evaluate_stages, similarity_stages
from adapt.job.training_jobs import dapt_stages
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.stage.model_evaluation import Compare
from adapt.support.errors import ConfigError
from tests.model.checkpoints import exchange_tokens
from tests.samples import sentences, with_labels, write
from tests.show.shown import show_result


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Returns a configuration with two sources, general text, and a second model to compare with."""
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\x80\x3e")  # Changed weights make it a different model.

    def text(name: str, count: int, seed: int) -> str:
        return write(tmp_path / f"{name}.jsonl", [{"text": text} for text in sentences(count, seed)])

    sources = [SourceConfig(name, paths=text(name, 60, seed)) for seed, name in enumerate(("cells", "code"))]
    return Config(
        name="matrix",
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(sources=sources, heldout_fraction=0.6),
        training=TrainingConfig(sequence_length=32),
        evaluation=EvaluationConfig(general_paths=text("general", 35, 9), sequence_length=32, bootstrap_samples=50),
        comparison=ComparisonConfig(models=[NamedModel("DAPT", str(other))]),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def task(folder: Path, name: str = "toy", kind: str = "single_label") -> TaskConfig:
    files = {
        split: write(folder / f"{name}-{split}.jsonl", with_labels(sentences(12, seed)))
        for seed, split in enumerate(("train", "dev", "test"), start=20)
    }
    return TaskConfig(name=name, kind=kind, **files)  # type: ignore[arg-type]


def built(config: Config) -> Compare:
    return evaluate_stages(Context.of(config))


def test_each_model_is_measured_on_every_domain(config: Config) -> None:
    stage = built(config)
    assert stage.what()["models"] == ["base", "DAPT"]
    assert stage.what()["domains"] == ["cells", "code", "general"]
    assert list(stage.inputs) == ["models.base.losses", "models.DAPT.losses"]
    first, second = (model.losses for model in stage.models.values())
    assert list(first.corpora) == list(second.corpora) == ["cells", "code", "general"]
    assert first != second


def test_measurements_are_shared_with_other_jobs(config: Config) -> None:
    config = replace(config, evaluation=replace(config.evaluation, general_paths=[]))
    similar = replace(config.similarity, models=[config.model.path, config.comparison.models[0].path])
    context = Context.of(replace(config, similarity=similar))
    losses = {model.losses for model in built(config).models.values()}
    assert losses == set(similarity_stages(context).evaluations.values())


def test_a_model_that_the_chain_makes_is_measured_when_it_exists(config: Config) -> None:
    context = Context.of(config)
    training = dapt_stages(context).training
    made = Context.of(config, made={config.comparison.models[0].path: context.start.after(training)})
    assert evaluate_stages(made).models["DAPT"].losses.start.training == training
    assert evaluate_stages(made).models["base"].losses == built(config).models["base"].losses


def test_features_are_evaluated_on_tasks_with_one_label(config: Config, tmp_path: Path) -> None:
    tasks = [task(tmp_path), task(tmp_path, "tags", kind="multi_label")]
    stage = built(replace(config, task=tasks[0], tasks=tasks[1:]))
    judged = [model.neighbours for model in stage.models.values()]
    assert [list(each.tasks) for each in judged if each] == [["toy"], ["toy"]]


def test_each_measurement_of_a_model_takes_one_device(config: Config, tmp_path: Path) -> None:
    """A measurement that reserves the whole cluster would run alone, even if there is a device for each model."""
    on_gpus = replace(config, task=task(tmp_path), resources=replace(config.resources, gpus_per_worker=1))
    inputs = built(on_gpus).inputs.values()
    assert {stage.kind for stage in inputs} == {"evaluate", "neighbours"}
    assert [stage.needs() for stage in inputs] == [{"CPU": 1, "GPU": 1}] * 4


@pytest.mark.parametrize("name", ["base", "DAPT", "a/b", ""])
def test_duplicate_and_invalid_names_are_refused(config: Config, name: str) -> None:
    models = [*config.comparison.models, NamedModel(name, config.model.path)]
    with pytest.raises(ConfigError, match=r"comparison\.models: the name"):
        built(replace(config, comparison=ComparisonConfig(models=models)))


def test_a_source_cannot_have_the_name_of_the_general_text(config: Config) -> None:
    sources = [replace(config.corpus.sources[0], name="general"), config.corpus.sources[1]]
    with pytest.raises(ConfigError, match=r"corpus\.sources: the name 'general'"):
        built(replace(config, corpus=replace(config.corpus, sources=sources)))


def with_another_tokenizer(config: Config) -> Config:
    """Swaps the ids of two tokens in the tokenizer of the second model."""
    exchange_tokens(Path(config.comparison.models[0].path))
    return config


def test_an_equal_tokenizer_in_different_files_counts_as_the_same(config: Config) -> None:
    """If transformers saves a tokenizer, its files differ from the original files, but the tokenizer is the same."""
    folder = Path(config.comparison.models[0].path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "local_files_only": False}))
    (folder / "tokenizer.json").write_text(json.dumps(json.loads((folder / "tokenizer.json").read_text())))
    stage = built(config)
    base, other = (model.losses for model in stage.models.values())
    assert stage.unit == "token"
    assert base.corpora == other.corpora


def test_a_model_with_another_tokenizer_is_measured_in_its_own_tokens(config: Config) -> None:
    before = built(config)
    stage = built(with_another_tokenizer(config))
    assert (before.unit, stage.unit) == ("token", "byte")
    base, other = (model.losses for model in stage.models.values())
    assert base == before.models["base"].losses
    assert all(base.corpora[name] != other.corpora[name] for name in stage.domains)


@pytest.mark.usefixtures("ray_cluster")
def test_losses_of_different_tokenizers_are_compared_per_byte(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    context = Context.of(with_another_tokenizer(config))
    done = ensure(evaluate_stages(context), context.store)
    assert done.result.unit == "bits per byte"
    base = done.result.loss[0]
    # A random model has about log(154) nats per token, and a token has about 4 letters.
    assert all(0.2 < loss < 4 for loss in base)
    for name, path in ((each["stage"], each["path"]) for each in done.record.inputs.values()):
        texts = json.loads((Path(path) / "stage.json").read_text())["metrics"]["texts"]
        assert all(text["bits_per_byte"] for text in texts.values()), name
    show_result(done)
    assert "bits per byte" in capsys.readouterr().err


@pytest.mark.usefixtures("ray_cluster")
def test_the_whole_job(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = Context.of(replace(config, task=task(tmp_path)))
    done = ensure(evaluate_stages(context), context.store)
    found = done.result
    assert found.models == ["base", "DAPT"]
    assert [len(row) for row in found.loss] == [3, 3]
    assert found.change[0] == [0.0, 0.0, 0.0]
    for place in range(3):
        assert found.change[1][place] == pytest.approx(found.loss[1][place] - found.loss[0][place])
    assert found.documents["general"] == 35  # The 35 documents are all of the general text.
    # The overlap is unknown, because the origin of the models' training text is unknown.
    assert found.overlap == dict.fromkeys(found.models, dict.fromkeys(found.domains))
    assert found.knn
    assert all(share is not None and 0 <= share <= 1 for share in found.knn["toy"].values())
    capsys.readouterr()
    show_result(done)
    shown = capsys.readouterr().err
    for expected in (
        "general",
        "DAPT",
        "Loss minus that of base",
        "nearest neighbours",
        "matrix.png",
    ):
        assert expected in shown
    assert f"{found.change[1][0]:+.3f}" in shown
