"""Tests plans with probes and with the choice of the best step: refused settings, and settings that change keys."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, TaskConfig
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages
from adapt.stage.context import Context
from adapt.stage.finetuning import task_of
from adapt.stage.measured_training import measures_of, metrics_of
from adapt.stage.training_plan import RunPart
from adapt.support.errors import ConfigError
from tests.job.worlds import changed, dapt_world, sequence_world
from tests.stage.done import done_of, record_of


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a configuration of DAPT with a task, and measurements every 5 of 20 steps."""
    base = dapt_world(tmp_path, monkeypatch)
    for split, labels in {"train": "ab", "dev": "ab", "test": "a"}.items():
        lines = [json.dumps({"text": f"a text of {split} {label}", "label": label}) for label in labels]
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(lines))
    paths: dict[str, Any] = {split: f"data/{split}.jsonl" for split in ("train", "dev", "test")}
    training, evaluation = replace(base.training, max_steps=20), replace(base.evaluation, interval_steps=5)
    return replace(base, training=training, evaluation=evaluation, task=TaskConfig(name="intent", **paths))


def with_fields(config: Config, **fields: Any) -> Config:
    for name, value in fields.items():
        config = changed(config, name.replace("__", "."), value)
    return config


def key(config: Config) -> str:
    return dapt_stages(Context.of(config)).training.key


BEST = {"evaluation__probe": "linear", "training__keep": "best", "training__keep_metric": "intent.dev_macro_f1"}


def test_probes_change_no_key_unless_they_decide(config: Config) -> None:
    plain = key(with_fields(config, evaluation__interval_steps=None))
    shown = with_fields(config, evaluation__probe="knn")
    assert plain == key(config) == key(shown)
    training = dapt_stages(Context.of(shown)).training
    assert "task.intent" in training.shown.stages
    assert not any("intent" in name for name in training.inputs)

    best = with_fields(config, **BEST)
    assert "judged.task.intent" in dapt_stages(Context.of(best)).training.inputs
    others = [
        with_fields(best, **other)
        for other in (
            {"evaluation__probe": "knn"},
            {"training__keep_metric": "domain_loss"},
            {"evaluation__interval_steps": 4},
        )
    ]
    assert len({plain, *map(key, (best, *others))}) == 5
    decided = key(best)
    Path("data/dev.jsonl").write_text('{"text": "x", "label": "a"}\n{"text": "y", "label": "b"}')
    assert key(best) != decided
    assert key(shown) == plain


def test_the_metric_that_would_choose_enters_no_key_without_a_choice(config: Config) -> None:
    assert key(with_fields(config, training__keep_metric="general_loss")) == key(config)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"evaluation__probe": "knn", "evaluation__interval_steps": None}, "evaluation.probe is set, but nothing is"),
        ({"evaluation__probe": "knn", "task": TaskConfig()}, "evaluation.probe is set, but no task is configured"),
        ({"evaluation__probe": "knn", "task__kind": "tokens"}, "task intent is of kind tokens"),
        ({"evaluation__probe": "knn", "task__dev": "data/test.jsonl"}, "task.dev of intent has only the class a"),
        ({"training__keep": "best", "evaluation__interval_steps": None}, "training.keep best is set, but nothing is"),
        ({**BEST, "evaluation__probe": None}, "training.keep_metric: intent.dev_macro_f1 is not measured"),
        ({**BEST, "training__keep_metric": "other.dev_macro_f1"}, "other.dev_macro_f1 is not measured"),
        ({**BEST, "method__kind": "average"}, "method.kind average exports a different model"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_plans(config: Config, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dapt_stages(Context.of(with_fields(config, **fields)))


def test_the_fix_names_the_field_that_is_missing(config: Config) -> None:
    assert metrics_of(config, {})["intent.dev_macro_f1"] == "set evaluation.probe to knn or linear"
    assert metrics_of(with_fields(config, evaluation__probe="knn"), {})["intent.dev_macro_f1"] == ""


def test_the_first_domain_of_a_sequence_has_no_earlier_losses_to_choose_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_fields(
        replace(sequence_world(tmp_path, monkeypatch), tasks=[]),
        evaluation__interval_steps=5,
        training__keep="best",
        training__keep_metric="past_loss",
        method__kind="replay",
    )
    kept = [step.training.config.training.keep for step in sequence_stages(Context.of(config)).steps]
    assert kept == ["last", "best", "best"]


@pytest.mark.parametrize("leaks", [4, 5])
def test_a_probe_needs_dev_examples_whose_texts_are_not_in_train(config: Config, leaks: int) -> None:
    """Otherwise, the classifier of the probe would fail during training, because half of dev is empty."""
    probed = with_fields(config, evaluation__probe="linear")
    stage = task_of(Context.of(probed), probed.task)
    done = done_of(record_of(stage, examples={"train": 9, "dev": 5, "test": 5}, leaks={"dev_in_train": leaks}))
    part = RunPart(probed, 0, 20, (), 0, ())
    with pytest.raises(ConfigError, match=f"{leaks} of the 5 dev examples of intent have a text that is also in train"):
        measures_of("dapt", part, {"task.intent": stage}, done, None)
