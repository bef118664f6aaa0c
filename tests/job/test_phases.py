"""Tests jobs with `training.phases`: their stages, and which stages run again after a change of the configuration."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from adapt.config import Config, MethodConfig, PhaseConfig, SequenceConfig, SourceConfig, TaptConfig
from adapt.config.job_config import TAPT_LENGTH
from adapt.job import JOBS
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages, tapt_stages
from adapt.parse import parse_values
from adapt.runner import Done, Stage
from adapt.stage.context import Context
from adapt.stage.export_model import Export, phases_table, planned_phases
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from tests.job.worlds import dapt_world, sequence_world, task_world
from tests.stage.done import done_of, record_of

STABLE: dict[str, Any] = {"steps": 60, "objective": {"mask_fraction": 0.3}}
MIDDLE: dict[str, Any] = {"steps": 30}
DECAY: dict[str, Any] = {"steps": 10, "schedule": "one_minus_sqrt", "mixture": {"replay_fraction": 0.0}}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return dapt_world(tmp_path, monkeypatch)


def phased(config: Config, *phases: dict[str, Any], **training: Any) -> Config:
    given = [PhaseConfig(**phase) for phase in phases]
    return replace(config, training=replace(config.training, phases=given, **training))


def built(config: Config, *phases: dict[str, Any], **training: Any) -> Export:
    return dapt_stages(Context.of(phased(config, *phases, **training)))


def keys(export: Export) -> list[str]:
    return [training.key for training in export.training.phases]


def test_each_phase_is_a_stage_that_follows_the_one_before(config: Config) -> None:
    export = built(config, STABLE, MIDDLE, DECAY)
    first, second, third = export.training.phases
    assert [stage.name for stage in (first, second, third)] == [f"dapt-phase-{number}" for number in (1, 2, 3)]
    assert (first.previous, second.previous, third.previous) == (None, first, second)
    assert {stage.start.digest for stage in (first, second, third)} == {Context.of(config).start.digest}
    assert export.phases == (first, second)
    assert [evaluation.start.training for evaluation in (*export.between, export.after)] == [first, second, third]
    assert first.what()["objective"]["mask_fraction"] == 0.3
    assert second.what()["objective"]["mask_fraction"] == 0.15
    assert third.what()["mixture"]["replay_fraction"] == 0


def test_a_changed_or_added_last_phase_reuses_the_phases_before(config: Config) -> None:
    whole = keys(built(config, STABLE, MIDDLE, DECAY))
    slower = keys(built(config, STABLE, MIDDLE, {**DECAY, "learning_rate": 1e-4}))
    assert [old == new for old, new in zip(whole, slower, strict=True)] == [True, True, False]
    assert keys(built(config, STABLE, MIDDLE)) == whole[:2]
    longer = keys(built(config, STABLE, {**MIDDLE, "steps": 31}, DECAY))
    assert [old == new for old, new in zip(whole, longer, strict=True)] == [True, False, False]
    plain = built(config)
    assert plain.training.phases == (plain.training,)
    assert (plain.phases, plain.between) == ((), ())


def test_joint_training_has_the_phases_of_all_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace(sequence_world(tmp_path, monkeypatch), method=MethodConfig())
    base = phased(world, {"steps": 6}, {"tokens": 1000}, max_steps=None)
    shares = phased(world, {"fraction": 0.5}, {}, max_steps=10)

    def limits(config: Config, mode: Literal["separate", "joint"]) -> list[tuple[int | None, int | None]]:
        stage = sequence_stages(Context.of(replace(config, sequence=SequenceConfig(mode=mode))))
        each = [phase.config.training for phase in stage.steps[0].training.phases]
        return [(training.max_steps, training.max_tokens) for training in each]

    assert limits(base, "separate") == [(6, None), (None, 1000)]
    assert limits(base, "joint") == [(18, None), (None, 3000)]
    assert limits(shares, "joint") == [(30, None), (30, None)]


def test_a_share_of_a_longer_run_is_another_phase(config: Config) -> None:
    shares: list[dict[str, Any]] = [{"fraction": 0.5}, {}]
    short, long = (keys(built(config, *shares, max_steps=steps)) for steps in (100, 200))
    assert len({*short, *long}) == 4


def test_errors_name_the_phase(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"training\.phases, entry 2: sequence_length is 256"):
        built(config, STABLE, {"steps": 5, "sequence_length": 256})
    workers = replace(config, resources=replace(config.resources, workers=2))
    with pytest.raises(ConfigError, match=r"training\.phases, entry 1: .* is no multiple of resources\.workers 2"):
        built(workers, {"steps": 5, "global_batch_size": 7})
    with pytest.raises(ConfigError, match=r"entry 1 has weights, but the training has no list of corpus\.sources"):
        built(config, {"steps": 5, "weights": {"a": 1.0}})


def test_lengths_of_shares_are_checked_before_anything_runs(config: Config) -> None:
    """Phases as shares of a run have known lengths, unless the run's length depends on the corpus or the model."""
    with pytest.raises(ConfigError, match="entry 2 is shorter than one step: the run has 10 steps"):
        built(config, {"fraction": 0.99}, {}, max_steps=10)
    warmed: list[dict[str, Any]] = [{"fraction": 0.1, "warmup_steps": 11}, {}]
    for limit in ({"max_steps": 100}, {"max_tokens": 100 * 8 * 128}):
        with pytest.raises(ConfigError, match="entry 1: warmup_steps 11 is longer than the phase of 10 steps"):
            built(config, *warmed, **limit)
    built(config, *warmed, epochs=1.0)
    built(config, *warmed, max_steps=110)


def test_weights_of_a_phase_choose_its_sources(config: Config) -> None:
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl") for name in ("a", "b")]
    several = replace(config, corpus=replace(config.corpus, paths=[], sources=sources))
    first, second = built(several, STABLE, {**DECAY, "weights": {"b": 1.0}}).training.phases
    assert (first.weights, second.weights) == (None, (0.0, 1.0))
    assert first.corpora["a"].key == second.corpora["a"].key


def test_tables_have_a_row_per_phase(config: Config) -> None:
    trainings = built(config, STABLE, MIDDLE, DECAY).training.phases
    figures = [
        training.figures(steps, 8 * 128 * steps, 8, {"domain": 2.5})
        for training, steps in zip(trainings, (60, 30, 10), strict=True)
    ]
    table = phases_table(figures, "your domain")
    assert table.rows[2][:5] == ["3", "10", "10,240", "0.0005, one_minus_sqrt", "mlm, 15%"]
    assert table.header[-1] == "loss on your domain"
    assert "objective mlm, 30%" in figures[0].sentence()
    assert planned_phases(dict.fromkeys(trainings), Done({})) is None


def test_tapt_has_phases_and_its_batches_stay_those_of_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = task_world(tmp_path, monkeypatch)
    export = tapt_stages(Context.of(phased(world, {"fraction": 0.9}, {"schedule": "linear"})))
    assert [stage.batch_examples for stage in export.training.phases] == [256, 256]
    with pytest.raises(ConfigError, match=r"entry 1 has its own global_batch_size, but tapt\.batch_examples"):
        tapt_stages(Context.of(phased(world, {"global_batch_size": 8})))
    phase = export.training.phases[0]
    (text,) = phase.corpora.values()
    done = done_of(record_of(text, train_documents=1000, train_tokens=4000))
    assert (phase.rows_per_step(Done({})), phase.rows_per_step(done)) == (2048, 256 * 4 // 64)
    own = replace(phased(world, {"global_batch_size": 8}), tapt=TaptConfig(batch_examples=None))
    assert tapt_stages(Context.of(own)).training.config.training.global_batch_size == 8


def test_each_domain_of_a_sequence_has_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = phased(sequence_world(tmp_path, monkeypatch), {"fraction": 0.5}, {"schedule": "linear"})
    steps = sequence_stages(Context.of(world)).steps
    for number, step in enumerate(steps):
        assert isinstance(step.training, Train)
        first, last = step.training.phases
        assert (first.domain, last.domain) == (step.domain, step.domain)
        before: Stage[Any] | None = steps[number - 1].training if number else None
        assert first.start.training == last.start.training == before
        assert step.export
        assert step.export.phases == (first,)


def test_phases_replace_the_defaults_of_a_job() -> None:
    task = {"task": dict.fromkeys(("train", "dev", "test"), "x")}
    lengths = parse_values({**task, "training": {"phases": [{"steps": 5}]}}, JOBS["tapt"].kind, "a test").training
    assert (lengths.epochs, lengths.max_steps) == (None, None)
    shares = parse_values({**task, "training": {"phases": [{"fraction": 1.0}]}}, JOBS["tapt"].kind, "a test").training
    assert shares.epochs == TAPT_LENGTH["training.epochs"]
    with pytest.raises(ConfigError, match=r"unknown key mask_fraction in entry 1 of training\.phases"):
        parse_values({**task, "training": {"phases": [{"mask_fraction": 0.3}]}}, JOBS["tapt"].kind, "a test")
