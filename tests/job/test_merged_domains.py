"""Tests sequences whose domains are learnt separately and merged: training runs, merges, and refused settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, MergeConfig, MethodConfig
from adapt.job.sequence_job import SEQUENCE_JOB, sequence_stages
from adapt.job.training_jobs import dapt_stages
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence
from adapt.stage.merge_stage import Merge
from adapt.support.errors import ConfigError
from tests.job.worlds import DOMAINS, sequence_world


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return sequence_world(tmp_path, monkeypatch)


def built(config: Config, method: str = "merge", **merge: Any) -> Sequence:
    section = MergeConfig(**{"kind": "ties", **merge})
    return sequence_stages(Context.of(replace(config, method=MethodConfig(method), merge=section)))


def merges(stage: Sequence) -> list[Merge]:
    return [step.merged for step in stage.steps if step.merged]


def test_each_domain_is_trained_from_the_base_and_merged_with_the_earlier_ones(config: Config) -> None:
    stage, apart = built(config), built(config, "one")
    assert [step.training.key for step in stage.steps] == [step.training.key for step in apart.steps]
    for number, merge in enumerate(merges(stage), start=1):
        assert merge.start.training is None
        assert [model.training for model in merge.models] == [step.training for step in stage.steps[:number]]
        assert merge.merging.kind == "ties"
    assert len(merges(stage)) == len(DOMAINS)


def test_the_merge_is_measured_tested_and_exported(config: Config) -> None:
    stage = built(config)
    for number, step in enumerate(stage.steps, start=1):
        assert step.others
        assert step.others.start.training == step.merged
        assert list(step.others.corpora) == [*DOMAINS[:number], "general"]
        assert all(run.start.training == step.merged for runs in step.runs.values() for run in runs)
    assert stage.model == stage.steps[-1].merged
    assert stage.model
    assert SEQUENCE_JOB.training
    assert SEQUENCE_JOB.training(stage) == stage.model
    assert stage.model.model_place == "."


def test_another_way_of_merging_trains_nothing(config: Config) -> None:
    one, other = built(config), built(config, kind="task_arithmetic", shares=[0.3])
    assert [step.training.key for step in one.steps] == [step.training.key for step in other.steps]
    assert not {merge.key for merge in merges(one)} & {merge.key for merge in merges(other)}


def test_a_domain_added_later_redoes_nothing(config: Config) -> None:
    shorter = replace(config, corpus=replace(config.corpus, sources=config.corpus.sources[:2]), tasks=config.tasks[:1])
    before, after = built(shorter), built(config)
    assert {each.key for each in before.inputs.values()} <= {each.key for each in after.inputs.values()}


def test_each_domain_has_its_own_weight(config: Config) -> None:
    stage = built(config, weights=[1.0, 2.0, 3.0])
    assert [merge.merging.weights for merge in merges(stage)] == [(1.0,), (1.0, 2.0), (1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "interpolate"}, "merge.kind interpolate takes no more than 1 model"),
        ({"kind": "residual"}, "merge.kind residual takes no more than 2 models"),
        ({"models": ["runs/export/one"]}, "merges the models of the sequence's domains"),
        ({"weights": [1.0]}, "merge.weights has 1 numbers, but there are 3 domains"),
        ({"weights": [1.0, 1.0, 1.0, 2.0]}, "merge.weights has 4 numbers, but there are 3 domains"),
        ({"shares": [0.3, 0.5]}, "a sequence continues with one merged model"),
    ],
)
def test_wrong_merge_settings_are_refused(config: Config, section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sequence_stages(
            Context.of(replace(config, method=MethodConfig("merge"), merge=MergeConfig(**{"kind": "ties", **section})))
        )


def test_a_single_domain_is_refused(config: Config) -> None:
    alone = replace(config, method=MethodConfig("merge"), tasks=[])
    alone = replace(alone, corpus=replace(alone.corpus, sources=[], paths="data/cs.jsonl"))
    with pytest.raises(ConfigError, match="there is one domain"):
        dapt_stages(Context.of(alone))
