"""Tests the stages of domain sequences: their inputs, and the stages that sequences share. No model is trained."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, EvaluationSet, MethodConfig, ResourcesConfig, SequenceConfig, SourceConfig, StopConfig
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages
from adapt.method.domain_parameters import AdaptersOptions
from adapt.runner import Stage
from adapt.runner.stage import everything
from adapt.stage import train, training_plan
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence
from adapt.stage.prepare_text import Prepare
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from adapt.train.schedule import RunLength
from tests.job.worlds import DOMAINS, sequence_world, source
from tests.stage.done import record_of


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return sequence_world(tmp_path, monkeypatch)


def built(config: Config, **changes: Any) -> Sequence:
    return sequence_stages(Context.of(replace(config, sequence=SequenceConfig(**changes))))


def plain(config: Config) -> Config:
    return replace(config, method=MethodConfig("plain"))


def trainings(stage: Sequence) -> list[Train]:
    return [step.training for step in stage.steps]


def keys(stages: Iterable[Stage[Any]]) -> list[str]:
    return [stage.key for stage in stages]


def taught(stage: Sequence) -> set[tuple[str, int, int]]:
    """Returns task, seed and number of learnt domains for each fine-tuning run of a sequence."""
    runs = {0: stage.untaught, **{step.learnt: step.runs for step in stage.steps}}
    return {(task, run.seed, learnt) for learnt in runs for task, some in runs[learnt].items() for run in some}


def prepared(stage: Stage[Any] | None) -> Prepare:
    assert isinstance(stage, Prepare)
    return stage


def test_each_domain_starts_from_the_last(config: Config) -> None:
    first, second, third = trainings(built(config))
    assert first.start.training is None
    assert (second.start.training, third.start.training) == (first, second)
    assert {"start.training", "corpora.domain"} < third.inputs.keys()


def test_all_domains_so_far_are_tested_after_each_domain(config: Config) -> None:
    stage = built(config)
    assert taught(stage) == {
        *(("cs", seed, after) for seed in (0, 1) for after in (1, 2, 3)),
        *(("sentiment", seed, 3) for seed in (0, 1)),
    }
    for step in stage.steps:
        for run in (run for runs in step.runs.values() for run in runs):
            assert run.start.training == step.training
            assert run.key in keys(stage.inputs.values())
        assert step.export.after.start.training == step.training
    first, _, last = stage.steps
    assert last.others
    assert last.others.start.training == last.training
    assert list(last.others.corpora) == ["cs", "bio"]
    assert first.others is None
    assert stage.model == last.training


def test_without_the_full_matrix_a_task_is_tested_after_its_own_domain_and_the_last(config: Config) -> None:
    assert taught(built(config)) - taught(built(config, full_matrix=False)) == {("cs", 0, 2), ("cs", 1, 2)}
    for mode in ("separate", "joint"):  # These two modes test each task only once, even with the full matrix.
        full = built(plain(config), mode=mode)
        assert built(plain(config), mode=mode, full_matrix=False).inputs.keys() == full.inputs.keys()


def test_forward_transfer_is_tested_before_a_domain_is_learnt(config: Config) -> None:
    more = taught(built(config, forward_transfer=True)) - taught(built(config))
    assert more == {
        (task, seed, after) for seed in (0, 1) for task, after in (("cs", 0), ("sentiment", 0), ("sentiment", 2))
    }


def test_a_domain_added_later_redoes_nothing(config: Config) -> None:
    shorter = replace(config, corpus=replace(config.corpus, sources=config.corpus.sources[:2]), tasks=config.tasks[:1])
    before, after = built(shorter), built(config)
    shared = {name: each.key for name, each in before.inputs.items() if not name.startswith("past.")}
    assert shared == {name: after.inputs[name].key for name in shared}
    assert before.past == after.steps[2].past
    assert before.key != after.key


def test_a_domain_added_later_has_its_own_evaluation_sets(config: Config) -> None:
    """A new domain gets its own evaluation sets, because sets of the whole corpus would change earlier domains."""
    own = [EvaluationSet("sentiment", "data/test.jsonl")]
    general = [EvaluationSet("cs", "data/dev.jsonl")]
    corpus = replace(config.corpus, sources=config.corpus.sources[:2], decontaminate=general)
    shorter = replace(config, corpus=corpus, tasks=[])
    added = [*corpus.sources, replace(source("reviews"), decontaminate=own)]
    after = built(replace(shorter, corpus=replace(corpus, sources=added)))
    assert keys(trainings(after))[:2] == keys(trainings(built(shorter)))
    sets = [after.texts[name].what()["corpus"]["decontaminate"]["sets"].keys() for name in DOMAINS]
    assert [set(each) for each in sets] == [{"cs"}, {"cs"}, {"cs", "sentiment"}]


def test_domains_and_replay_leave_out_the_same_measured_text(config: Config) -> None:
    """Checks the training text of every domain and the replayed text: each leaves out the measured general text."""
    mixture = replace(config.mixture, replay_paths="data/more.jsonl", replay_fraction=0.1)
    # these files are also measured as general text
    sources = [*config.corpus.sources, SourceConfig("wiki", paths="data/general.jsonl")]
    for corpus, share in ((config.corpus, 1.0), (replace(config.corpus, sources=sources), 0.01)):
        stage = built(replace(config, mixture=mixture, corpus=corpus), order=list(DOMAINS))
        (general,) = {step.export.general for step in stage.steps}
        texts = [prepared(t) for each in trainings(stage) for t in (*each.corpora.values(), each.replay)]
        assert len(texts) == 6
        assert {text.measured for text in texts} == {(general,)}
        assert prepared(general).what()["corpus"]["heldout_fraction"] == share


def test_of_near_copies_the_domain_listed_later_drops_its_copy(config: Config) -> None:
    near = replace(config, corpus=replace(config.corpus, deduplicate="near"))
    stage = built(near)
    listings = [prepared(stage.texts[name]).files.listing for name in DOMAINS]
    for place, name in enumerate(DOMAINS):
        text = prepared(stage.texts[name])
        assert text.dedup
        before = [prepared(text.measured[0]).files.listing, *listings[:place]]
        assert [files.listing for files in text.dedup.before] == before
        assert [files.listing for files in text.dedup.sources] == [listings[place]]
    # The order of the domains does not change the texts.
    assert built(near, order=["reviews", "cs", "bio"]).texts == stage.texts
    fewer = replace(near, tasks=[], corpus=replace(near.corpus, sources=near.corpus.sources[:2]))
    assert keys(trainings(built(fewer))) == keys(trainings(stage))[:2]


def test_another_order_reuses_the_common_beginning(config: Config) -> None:
    one, other = (built(config, order=order) for order in (["cs", "bio", "reviews"], ["cs", "reviews", "bio"]))
    assert keys(trainings(one))[0] == keys(trainings(other))[0]
    assert not set(keys(trainings(one))[1:]) & set(keys(trainings(other)))
    assert built(config, order=[]).key == one.key


def test_a_source_missing_from_the_order_is_not_learnt(config: Config) -> None:
    stage = built(config, order=["bio", "cs"])
    assert [step.domain for step in stage.steps] == ["bio", "cs"]
    assert not [name for name in stage.inputs if "reviews" in name or "sentiment" in name]


def test_all_data_is_read_before_the_first_domain_is_learnt(config: Config) -> None:
    stage = built(config)
    assert {each.kind for each in stage.data} == {"prepare", "task"}
    assert stage.data == [*stage.texts.values(), *stage.tasks.values()]
    assert len(stage.data) == 5


# --- baselines


def test_plain_sequential_training_is_dapt_after_dapt(config: Config) -> None:
    first, second, _ = trainings(built(plain(config)))
    assert not first.past
    assert not second.past
    alone = replace(plain(config), corpus=replace(config.corpus, sources=[], paths="data/cs.jsonl"), tasks=[])
    assert dapt_stages(Context.of(alone)).training == first


def test_separate_domains_start_from_the_same_model_and_test_their_own_tasks(config: Config) -> None:
    stage = built(plain(config), mode="separate")
    assert all(each.start.training is None for each in trainings(stage))
    assert taught(stage) == {
        *(("cs", seed, 1) for seed in (0, 1)),
        *(("sentiment", seed, 3) for seed in (0, 1)),
    }
    assert stage.model is None


def test_joint_domains_are_sources_of_one_training_with_the_total_length(config: Config) -> None:
    stage = built(plain(config), mode="joint")
    (joint,) = trainings(stage)
    assert list(joint.inputs) == [f"corpora.{name}" for name in DOMAINS]
    assert joint.what()["training"]["max_steps"] == 30
    assert stage.steps[0].others
    assert list(stage.steps[0].others.corpora) == list(DOMAINS)
    other = built(plain(config), mode="joint", order=["bio", "cs", "reviews"])
    assert keys(trainings(other)) == [joint.key]


@pytest.mark.parametrize(("mode", "shares"), [("continual", [1.0]), ("joint", [0.25, 0.75])])
def test_a_forecast_gives_sources_their_weights(
    config: Config, monkeypatch: pytest.MonkeyPatch, mode: str, shares: list[float]
) -> None:
    """A single domain needs no weights. A domain that is missing from `sequence.order` gets no share."""
    sources = [replace(each, weight=weight) for each, weight in zip(config.corpus.sources, (1, 5, 3), strict=True)]
    weighted = replace(plain(config), corpus=replace(config.corpus, sources=sources))
    training = trainings(built(weighted, order=["cs", "reviews"], mode=mode))[0]
    mixtures: list[Any] = []

    def length_over(config: Config, mixture: Any) -> RunLength:
        mixtures.append(mixture)
        return real(config, mixture)

    real = training_plan.length_over
    monkeypatch.setattr(training_plan, "length_over", length_over)
    monkeypatch.setattr(training_plan, "first_size", lambda start, done: object())
    monkeypatch.setattr(train, "forecast", lambda *given: given)
    forecast: Any = training.forecast({t.key: record_of(t, train_tokens=6400) for t in training.corpora.values()})
    assert [slots / 1000 for slots in mixtures[0].slots] == shares
    assert forecast[2] == training.config.training.max_steps * training.config.training.global_batch_size * 64


def test_a_method_with_parts_per_domain_is_measured_with_and_without_the_domain(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("adapters")))
    assert [training.domain for training in trainings(stage)] == list(DOMAINS)
    last = stage.steps[-1]
    assert last.export.after.domains == {"domain": "reviews"}
    assert last.export.before.domains == {}
    assert last.others
    assert last.others.domains == {"cs": "cs", "bio": "bio"}
    asked = {task: {run.config.finetune.domain for run in runs} for task, runs in last.runs.items()}
    assert asked == {"cs": {"cs"}, "sentiment": {"reviews"}}
    untold = built(replace(config, method=MethodConfig("adapters")), domain_ids=False).steps[-1]
    assert {run.config.finetune.domain for runs in untold.runs.values() for run in runs} == {None}
    assert untold.runs["cs"][0].key != last.runs["cs"][0].key
    assert untold.training.key == last.training.key
    shared = built(replace(config, method=MethodConfig("adapters"), method_options=AdaptersOptions(per_domain=False)))
    assert not shared.steps[-1].export.after.domains
    assert built(config).steps[-1].export.after.what().keys() == {"model", "evaluation", "objective"}


def test_each_domain_can_have_a_model_with_adapters(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("adapters")), mode="separate")
    assert {training.start.training for training in trainings(stage)} == {None}
    assert [step.export.after.domains for step in stage.steps] == [{"domain": name} for name in DOMAINS]
    assert stage.steps[2].runs["sentiment"][0].config.finetune.domain == "reviews"


def test_stages_reserve_only_the_resources_that_they_use(config: Config) -> None:
    """Stages reserve no more than they use, so that other stages, such as evaluations, can run at the same time."""
    resources = ResourcesConfig(workers=2, cpus_per_worker=3.0, gpus_per_worker=2.0)
    needs = {stage.kind: stage.needs() for stage in everything([built(replace(config, resources=resources))])}
    ranks, device = {"CPU": 6.0, "GPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}
    assert needs.items() >= {"train": ranks, "importance": ranks, "evaluate": device, "export": {}}.items()
    assert needs["prepare"] is None


def watching(config: Config, *rules: StopConfig) -> Config:
    """Returns the configuration with measurements during training. The rules may end training runs early."""
    return replace(
        config,
        evaluation=replace(config.evaluation, interval_steps=5),
        training=replace(config.training, stop=list(rules) or None),
    )


def test_each_training_measures_its_domain_general_text_and_the_domains_before(config: Config) -> None:
    plain_keys = keys(trainings(built(config)))
    first, second, third = trainings(built(watching(config)))
    one, two, _ = built(config).order
    assert list(first.shown.stages) == ["domain", "general"]
    assert list(second.shown.stages) == ["domain", "general", f"before.{one}"]
    assert list(third.shown.stages) == ["domain", "general", f"before.{one}", f"before.{two}"]
    assert keys([first, second, third]) == plain_keys
    assert all(training.judged == {} for training in (first, second, third))


def test_rules_about_domains_before_apply_once_there_are_any(config: Config) -> None:
    one, *_ = built(config).order
    rules = StopConfig(metric="past_loss", rise=0.2), StopConfig(metric=f"past_loss.{one}", rise=0.3)
    first, second, _ = trainings(built(watching(config, *rules)))
    assert (first.config.training.stop, first.judged) == (None, {})
    assert second.config.training.rules == list(rules)
    assert list(second.judged) == ["domain", "general", f"before.{one}"]
    assert first.key == trainings(built(config))[0].key


def test_a_rule_about_an_unknown_domain_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"past_loss\.nowhere is not measured"):
        built(watching(config, StopConfig(metric="past_loss.nowhere", rise=0.2)))
