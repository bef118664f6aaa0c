"""Tests importance in jobs with method DAS: the text it is measured on, the stages that use it, and its key."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, MethodConfig
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages, tapt_stages
from adapt.method.das.method import DasOptions
from adapt.method.das.stage import MeasureImportance
from adapt.runner import Stage
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence
from adapt.stage.train import Train
from adapt.support.errors import ConfigError, ModelError
from tests.job.worlds import DOMAINS, sequence_world


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return sequence_world(tmp_path, monkeypatch)


def built(config: Config, **options: Any) -> Sequence:
    return sequence_stages(Context.of(replace(config, method_options=DasOptions(**options))))


def importance(past: Any) -> MeasureImportance:
    found: Stage[Any] = past["importance"]
    assert isinstance(found, MeasureImportance)
    return found


def measured(stage: Sequence) -> list[MeasureImportance]:
    """Returns the stages that measure importance: for the first model, and then after each domain."""
    return [importance(past) for past in (*(step.past for step in stage.steps), stage.past)]


def test_each_domain_is_masked_by_the_importance_of_all_earlier_ones(config: Config) -> None:
    stage = built(config)
    first, second, third = (step.training for step in stage.steps)
    general, *others = measured(stage)
    assert [training.past for training in (first, second, third)] == [
        {"importance": each} for each in (general, *others[:2])
    ]
    assert general.what()["about"] == "kl"
    assert general.inputs == {"texts.0": stage.texts["cs"]}
    assert others[0].previous == general
    assert others[1].inputs == {"texts.0": stage.texts["bio"], "start.training": second, "previous": others[0]}
    assert others[2].start.training == third
    assert all(each in set(stage.inputs.values()) for each in (general, *others))


def test_without_mask_and_contrast_no_importance_is_measured(config: Config) -> None:
    stage = built(config, soft_mask="none", contrast_weight=0.0)
    assert not [each for each in stage.inputs.values() if each.kind == "importance"]


def test_without_general_importance_the_first_domain_is_unmasked(config: Config) -> None:
    stage = built(config, general_importance="none")
    assert not stage.steps[0].training.past
    assert importance(stage.steps[1].training.past).inputs.keys() == {"texts.0", "start.training"}


def test_injected_dropout_also_applies_to_the_contrast(config: Config) -> None:
    """Checks a job without general importance. The key depends on the dropout only if there is a contrastive loss."""

    def first(**changes: Any) -> Train:
        return built(config, general_importance="none", **changes).steps[0].training

    assert first(injected_dropout=0.2) != first()
    assert first(injected_dropout=0.2, contrast_weight=0.0) == first(contrast_weight=0.0)


def test_importance_is_measured_on_the_training_text_of_sources(config: Config) -> None:
    """With several sources or tasks, the combined text only has held-out shards, so each source's own text is used."""
    training = dapt_stages(Context.of(replace(config, tasks=[]))).training
    assert importance(training.past).texts == tuple(training.corpora[name] for name in DOMAINS)
    both = [replace(config.tasks[0], name=name) for name in ("one", "two")]
    adapted = replace(config, corpus=CorpusConfig(), task=both[0], tasks=both[1:])
    training = tapt_stages(Context.of(adapted)).training
    assert importance(training.past).texts == tuple(training.corpora[name] for name in ("one", "two"))


# --- keys


@pytest.mark.parametrize(
    ("field", "value", "general", "domain"),
    [
        ("embeddings", "frequency", False, True),
        ("injected_dropout", 0.2, True, False),
        ("importance_batch", 8, True, True),
        ("normalize", "rank", True, True),
        ("plasticity_floor", 0.5, False, False),
        ("contrast_weight", 0.5, False, False),
    ],
)
def test_the_key_of_importance_depends_on_these_fields(
    config: Config, field: str, value: Any, general: bool, domain: bool
) -> None:
    """Compares the result of `what()` of the stage that measures the first domain's importance.

    Comparing keys would not work, because the key also depends on all fields of the previous training run.
    """
    first, second = measured(built(config)), measured(built(config, **{field: value}))
    assert (first[0].key != second[0].key) == general
    assert (first[1].what() != second[1].what()) == domain


def test_the_key_of_random_importance_depends_on_little_but_the_seed(config: Config) -> None:
    random = {"general_importance": "random"}
    known = measured(built(config, **random))[0]
    assert measured(built(config, **random, importance_sequences=7, granularity="example"))[0] == known
    assert measured(built(replace(config, seed=3), **random))[0] != known


def test_attention_dropout_changes_the_views(config: Config) -> None:
    without = replace(config, model=replace(config.model, attention_dropout=0.0))
    assert measured(built(without))[0] != measured(built(config))[0]


# --- what is refused


def test_an_unsupported_architecture_is_refused(config: Config) -> None:
    file = Path(config.model.path) / "config.json"
    file.write_text(json.dumps({"model_type": "ernie", "max_position_embeddings": 128}))
    with pytest.raises(ModelError, match="the layer names of ernie models are not known"):
        built(config)
    assert sequence_stages(Context.of(replace(config, method=MethodConfig("plain")))).steps


def test_importance_cannot_be_measured_on_streamed_text(config: Config) -> None:
    corpus = CorpusConfig(paths="data/cs.jsonl", streaming=True)
    with pytest.raises(ConfigError, match=r"corpus\.streaming is set, but importance is measured on prepared text"):
        dapt_stages(Context.of(replace(config, tasks=[], corpus=corpus)))
