"""Tests which fields the keys of fine-tuning depend on, and which tasks are refused. No model is trained."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, FinetuneConfig, TaskConfig
from adapt.job.training_jobs import FINETUNE_JOB, finetune_stages, runs, tapt_stages
from adapt.parse import check_config
from adapt.stage.context import Context
from adapt.stage.finetuning import Finetune, few_steps
from adapt.support.errors import ConfigError, ModelError
from tests.job.worlds import SPLITS, differing, task_world

# For each field: a value that differs from the configuration, and the stages whose keys change with the field.
TASK: dict[str, tuple[Any, set[str]]] = {
    "kind": ("multi_label", {"task", "run"}),
    "text_field": ("body", {"task", "run"}),
    "pair_field": ("label", {"task", "run"}),
    "label_field": ("text", {"task", "run"}),
    "id_field": ("text", {"task", "run"}),
    "metric": ("accuracy", {"task", "run"}),
    "name": ("renamed", set()),
    "domain": ("cs", set()),
    "max_bad_fraction": (0.5, set()),
}
FINETUNE: dict[str, tuple[Any, set[str]]] = {
    "mode": ("lora", {"run"}),
    "epochs": (1, {"run"}),
    "patience": (1, {"run"}),
    "learning_rate": (1e-3, {"run"}),
    "warmup_fraction": (0.5, {"run"}),
    "weight_decay": (0.5, {"run"}),
    "batch_size": (2, {"run"}),
    "max_length": (20, {"run"}),
    "dropout": (0.5, {"run"}),
    "pooling": ("mean", {"run"}),
    "class_weights": ("balanced", {"run"}),
    "lora_rank": (2, {"run"}),
    "lora_alpha": (2.0, {"run"}),
    "seeds": ([7], set()),
    "micro_batch": (4, set()),
    "cpus_per_seed": (0.5, set()),
    "gpus_per_seed": (0.5, set()),
    "save_model": (True, {"run"}),
    "domain": ("news", {"run"}),
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return task_world(tmp_path, monkeypatch)


def run_of(config: Config, seed: int = 3) -> Finetune:
    return Finetune.of(Context.of(config), seed)


def keys(config: Config) -> dict[str, str]:
    run = run_of(config)
    return {"run": run.key, "task": run.task.key}


@pytest.mark.parametrize(("section", "table"), [(TaskConfig, TASK), (FinetuneConfig, FINETUNE)])
def test_every_field_is_classified(section: type[Any], table: dict[str, Any]) -> None:
    assert {field.name for field in fields(section)} - set(SPLITS) == set(table)


@pytest.mark.parametrize("name", TASK)
def test_a_field_of_a_task_changes_these_keys(config: Config, name: str) -> None:
    value, expected = TASK[name]
    other = replace(config, task=replace(config.task, **{name: value}))
    assert differing(keys(config), keys(other)) == expected


@pytest.mark.parametrize("wrong", [{"mode": "lora"}, {"pooling": "mean"}])
def test_models_that_cannot_be_saved_are_refused_before_anything_runs(config: Config, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"finetune\.save_model"):
        run_of(replace(config, finetune=replace(config.finetune, save_model=True, **wrong))).refuse_early()


@pytest.mark.parametrize("name", FINETUNE)
def test_a_field_of_fine_tuning_changes_these_keys(config: Config, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # pretends that the model has separate parameters for each domain
    monkeypatch.setattr("adapt.stage.finetuning.check_parts", lambda folder, domain: None)
    value, expected = FINETUNE[name]
    other = replace(config, finetune=replace(config.finetune, **{name: value}))
    assert differing(keys(config), keys(other)) == expected


@pytest.mark.parametrize("split", SPLITS)
def test_the_content_of_the_files_counts(config: Config, split: str, tmp_path: Path) -> None:
    before = keys(config)
    with (tmp_path / "data" / f"{split}.jsonl").open("a") as file:
        file.write('{"text": "more", "label": "b"}\n')
    assert differing(before, keys(config)) == {"run", "task"}


def test_each_seed_has_a_stage_and_the_scores_combine_them(config: Config) -> None:
    context = Context.of(replace(config, finetune=FinetuneConfig(seeds=[4, 7])))
    scores = finetune_stages(context)
    assert list(scores.inputs) == ["runs.4", "runs.7"]
    assert scores.runs == runs(context)  # Chains call `runs` to fine-tune with each seed separately.
    assert scores.runs["4"] != scores.runs["7"]
    assert scores.runs["4"] == run_of(config, 4)


@pytest.mark.parametrize(
    ("changes", "examples", "words"),
    [
        ({}, 100, "make 7 steps per epoch.*patience 3 .*patience to null and finetune.epochs to 43$"),
        ({"epochs": 60}, 100, "patience to null$"),
        ({}, 272, ""),  # 3 epochs of 17 steps
        ({"patience": None}, 100, ""),
        ({"epochs": 3}, 100, ""),
        ({"mode": "feature_extraction"}, 100, ""),
    ],
)
def test_few_steps_before_patience_ends_are_said(
    config: Config, changes: dict[str, Any], examples: int, words: str
) -> None:
    said = few_steps(replace(config, finetune=FinetuneConfig(**changes)), examples)
    assert re.search(words, said) if words else not said


def test_a_start_model_from_another_stage_is_an_input_and_changes_the_key(config: Config) -> None:
    context = Context.of(config)
    training = tapt_stages(context).training
    run = Finetune.of(context.starting_from(training), 0)
    assert run.inputs["start.training"] is training
    assert run.what()["model"] is None
    assert run != run_of(config, 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": TaskConfig(train="a", dev="b")}, "task: test is empty"),
        ({"task": TaskConfig(name="a b", train="a", dev="b", test="c")}, "name 'a b' cannot be the name of a folder"),
        ({"task": TaskConfig(train="a", dev="b", test="c", metric="entity_f1")}, "metric entity_f1 does not suit kind"),
        ({"tasks": [TaskConfig(name="one", train="a", dev="b", test="c")]}, "two tasks are called 'one'"),
        ({"finetune": FinetuneConfig(seeds=[])}, r"finetune.seeds is \[\]"),
        ({"finetune": FinetuneConfig(seeds=[1, 1])}, r"finetune.seeds is \[1, 1\]"),
        ({"finetune": FinetuneConfig(seeds=[-1])}, r"finetune.seeds is \[-1\]"),
        ({"finetune": FinetuneConfig(seeds=[2**64])}, "finetune.seeds, entry 1 is"),
    ],
)
def test_unusable_tasks_are_refused(config: Config, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_config(replace(config, **wrong), FINETUNE_JOB.kind)


@pytest.mark.parametrize("attention", ["own", "bidirectional"])
def test_decoders_are_fine_tuned_whatever_the_objective(config: Config, attention: Any, tmp_path: Path) -> None:
    """Fine-tuning does not train with the objective or measure its loss. Only decoders can be turned into encoders."""
    turning = replace(config, model=replace(config.model, attention=attention))
    file = tmp_path / "model" / "config.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    context = Context.of(turning, kind=FINETUNE_JOB.kind)
    (run,) = list(runs(context).values())[:1]
    assert (run.start.turned is not None) == (attention == "bidirectional")
    with pytest.raises(ModelError, match=r"masked language modelling needs an encoder|predicts each token at the posi"):
        Context.of(turning)
    file.write_text(json.dumps({**kept, "architectures": ["BertForMaskedLM"]}))
    if attention == "own":
        Context.of(turning, kind=FINETUNE_JOB.kind)
    else:
        with pytest.raises(ModelError, match=r"model\.attention is bidirectional, but .* holds a BertForMaskedLM"):
            Context.of(turning, kind=FINETUNE_JOB.kind)
