"""Tests standard evaluations in jobs: refused configurations, keys, training runs, sequences, and compared models."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from adapt.config import (
    ComparisonConfig,
    Config,
    CorpusConfig,
    EvaluationConfig,
    ExportConfig,
    HarnessConfig,
    ModelConfig,
    MtebConfig,
    NamedModel,
    ObjectiveConfig,
    OwnMtebTask,
    StorageConfig,
    TrainingConfig,
)
from adapt.evaluate.benchmark import harness_tasks, mteb_tasks
from adapt.job.measuring_jobs import evaluate_stages
from adapt.job.training_jobs import dapt_stages
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.support.errors import ConfigError
from tests.evaluate.benchmark.tiny_tasks import task_folder, tiny_decoder
from tests.samples import sentences, write
from tests.show.shown import show_result


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    """Returns a configuration of DAPT with an encoder, and writes two tasks for decoders."""
    task_folder(tmp_path / "tasks", 30)
    text = write(tmp_path / "text.jsonl", [{"text": text} for text in sentences(80, seed=2)])
    return Config(
        name="measured",
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(paths=text, heldout_fraction=0.3),
        training=TrainingConfig(sequence_length=32, global_batch_size=4, max_steps=2),
        evaluation=EvaluationConfig(sequence_length=32, bootstrap_samples=50),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def harness(tmp_path: Path, *tasks: str) -> HarnessConfig:
    return HarnessConfig(tasks=[*tasks], include_path=str(tmp_path / "tasks"))


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests plan evaluations whether or not the extras are installed."""
    for module in (harness_tasks, mteb_tasks):
        monkeypatch.setattr(module, "missing_packages", lambda packages: "")


@pytest.mark.usefixtures("without_packages")
def test_models_that_cannot_be_measured_are_refused(config: Config, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.jsonl", [{"text": "a", "pair": "b", "label": 1}])
    own = MtebConfig(own=[OwnMtebTask("pairs", "sts", test=pairs)])
    for changed, said, fix in (
        (replace(config, harness=harness(tmp_path, "choice")), "harness.tasks needs a decoder", "objective.kind"),
        (replace(config, harness=harness(tmp_path)), "harness.tasks names no task", "name the tasks"),
        (replace(config, mteb=own), "not exported for sentence vectors", "set export.sentence_transformers to mean"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            dapt_stages(Context.of(changed))
        assert fix in caught.value.fix


@pytest.mark.usefixtures("without_packages")
def test_only_configured_evaluations_are_stages_and_the_training_does_not_depend_on_them(
    config: Config, tmp_path: Path
) -> None:
    decoder = tiny_decoder(tmp_path / "decoder")
    causal = replace(config, model=ModelConfig(path=str(decoder)), objective=ObjectiveConfig("causal"))
    plain = dapt_stages(Context.of(causal))
    assert "benchmarks" not in plain.inputs
    measured = dapt_stages(Context.of(replace(causal, harness=harness(tmp_path, "choice"))))
    assert measured.training.key == plain.training.key
    assert measured.before.key == plain.before.key
    assert list(measured.inputs["benchmarks"].inputs) == [
        *("models.before.scores", "models.before.leaks", "models.after.scores", "models.after.leaks"),
    ]


@pytest.mark.usefixtures("without_packages")
def test_keys_depend_on_the_fields_that_determine_scores(config: Config, tmp_path: Path) -> None:
    decoder, copy = tiny_decoder(tmp_path / "decoder"), shutil.copytree(tmp_path / "tasks", tmp_path / "copy")
    causal = replace(config, model=ModelConfig(path=str(decoder)), objective=ObjectiveConfig("causal"))

    def key(**changes: Any) -> str:
        return dapt_stages(Context.of(replace(causal, harness=replace(harness(tmp_path, "choice"), **changes)))).key

    counting: dict[str, Any] = {"tasks": ["pages"], "num_fewshot": 2, "limit": 3}
    others: dict[str, Any] = {"include_path": str(copy), "functions": ["choice"], "batch_size": 3}
    assert {*counting, *others} == {*vars(HarnessConfig())}
    assert len({key(), *(key(**{name: value}) for name, value in counting.items())}) == 1 + len(counting)
    assert {key(**{name: value}) for name, value in others.items()} == {key()}

    pairs = write(tmp_path / "pairs.jsonl", [{"text": "a", "pair": "b", "label": 1}])
    own = OwnMtebTask("pairs", "sts", test=pairs)
    vectors = replace(config, export=ExportConfig(sentence_transformers="mean"))

    def of_vectors(pooling: Literal["mean", "cls"] = "mean", **changes: Any) -> str:
        export = replace(vectors.export, sentence_transformers=pooling)
        return dapt_stages(Context.of(replace(vectors, export=export, mteb=MtebConfig(**{"own": [own]} | changes)))).key

    twin = replace(own, name="twin")
    assert len({of_vectors(), of_vectors("cls"), of_vectors(languages=["eng"]), of_vectors(own=[own, twin])}) == 4
    assert of_vectors(batch_size=3) == of_vectors()


@pytest.mark.usefixtures("without_packages")
def test_models_of_a_recipe_are_one_group(config: Config, tmp_path: Path) -> None:
    decoder = str(tiny_decoder(tmp_path / "decoder"))
    models = [NamedModel(name, decoder, recipe="dapt") for name in ("one", "two")]
    causal = replace(
        config,
        model=ModelConfig(path=decoder),
        objective=ObjectiveConfig("causal"),
        harness=harness(tmp_path, "choice"),
        comparison=ComparisonConfig(models=models),
    )
    stage = evaluate_stages(Context.of(causal)).benchmarks
    assert stage is not None
    assert stage.what()["recipes"] == {"one": "dapt", "two": "dapt"}
    clash = replace(causal, comparison=ComparisonConfig(models=[NamedModel("dapt", decoder, recipe="base")]))
    with pytest.raises(ConfigError, match="recipe base is also the name of a model"):
        evaluate_stages(Context.of(clash))


@pytest.mark.usefixtures("ray_cluster")
def test_a_training_is_measured_before_and_after_and_leaks_are_left_out(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval", reason="needs pip install 'dontstop[harness]'")
    rows = [json.loads(line) for line in (tmp_path / "tasks" / "choice.jsonl").read_text().splitlines()]
    leaked = [{"text": f"{row['question']} and {row['choices'][row['answer']]}"} for row in rows[:7]]
    text = write(tmp_path / "text.jsonl", [*({"text": text} for text in sentences(80, seed=2)), *leaked])
    causal = replace(
        config,
        model=ModelConfig(path=str(tiny_decoder(tmp_path / "decoder"))),
        objective=ObjectiveConfig("causal"),
        corpus=CorpusConfig(paths=text, heldout_fraction=0.02),
        harness=harness(tmp_path, "choice", "pages"),
    )
    context = Context.of(causal)
    done = ensure(dapt_stages(context), context.store)
    found = done.result.benchmarks
    assert found is not None
    rows_found = {(row.task, row.metric): row for row in found.rows}
    assert [*rows_found] == [("choice", "acc"), ("choice", "acc_norm"), ("pages", "bits_per_byte")]
    choice = rows_found["choice", "acc"]
    # copies in held-out text are not trained on, so fewer than 7 items may have leaked
    assert choice.leaked in range(1, 8)
    assert choice.clean_changes["after"].low is not None
    assert found.unknown == ["before"]
    assert found.tokens > 0
    capsys.readouterr()
    show_result(done)
    shown = capsys.readouterr().err
    assert "measured: standard evaluations" in shown
    assert "the training text contains test items: choice" in shown
    assert "choice" in done.result.verdict().effects
    card = (done.path / "README.md").read_text()
    assert "### Standard evaluations" in card
    assert "name: choice" in card.split("---")[1]

    compared = replace(
        causal, comparison=ComparisonConfig(models=[NamedModel(name, str(done.path), recipe="dapt") for name in "ab"])
    )
    context = Context.of(compared)
    models = ensure(evaluate_stages(context), context.store)
    benchmarks = models.result.benchmarks
    assert benchmarks is not None
    assert (benchmarks.models, benchmarks.seeds) == (["base", "dapt"], {"base": 1, "dapt": 2})
    row = next(row for row in benchmarks.rows if row.metric == "acc")
    assert row.changes["dapt"].value == pytest.approx(choice.changes["after"].value)
    assert row.leaked == choice.leaked  # the training run is found through the export's record


@pytest.mark.usefixtures("ray_cluster")
def test_sentence_vectors_are_measured_before_and_after(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("mteb", reason="needs pip install 'dontstop[mteb]'")
    texts = sentences(24, seed=4)
    pairs = [{"text": texts[n], "pair": texts[n + 12], "label": n % 5} for n in range(12)]
    own = OwnMtebTask("pairs", "sts", test=write(tmp_path / "pairs.jsonl", pairs))
    vectors = replace(config, export=ExportConfig(sentence_transformers="mean"), mteb=MtebConfig(own=[own]))
    context = Context.of(vectors)
    done = ensure(dapt_stages(context), context.store)
    assert done.result.benchmarks is not None
    (row,) = done.result.benchmarks.rows
    assert (row.task, row.metric, row.items, row.leaked) == ("pairs", "cosine_spearman", 12, 0)
    assert row.changes["after"].low is not None
