"""Tests replay as a method: the share of past domains' text in a sequence's training runs, and refused settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, MethodConfig, MixtureConfig, SequenceConfig
from adapt.config.job_config import DAPT
from adapt.corpus.sample_order import Mixture
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages
from adapt.method.sequence_modes import Replay, ReplayOptions
from adapt.parse import parse_values
from adapt.stage.context import Context
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from tests.job.worlds import DOMAINS, sequence_world


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return sequence_world(tmp_path, monkeypatch)


def trainings(config: Config, kind: str, options: Any = None, **changes: Any) -> list[Train]:
    chosen = replace(config, method=MethodConfig(kind), method_options=options, sequence=SequenceConfig(**changes))
    return [step.training for step in sequence_stages(Context.of(chosen)).steps]


def test_each_training_replays_all_earlier_domains(config: Config) -> None:
    plain, replayed = trainings(config, "plain"), trainings(config, "replay")
    assert [list(each.recalled) for each in replayed] == [[], ["cs"], ["cs", "bio"]]
    assert replayed[0].key == plain[0].key
    assert replayed[1].key != plain[1].key
    assert replayed[2].sources == [replayed[2].corpora["domain"], *replayed[2].recalled.values()]
    assert replayed[1].recalled["cs"].key == replayed[0].corpora["domain"].key
    more = trainings(config, "replay", ReplayOptions(fraction=0.5))
    assert [one.key == other.key for one, other in zip(replayed, more, strict=True)] == [True, False, False]


def test_any_method_can_replay_the_past(config: Config) -> None:
    """Checks that `sequence.replay_fraction` with plain training gives the same keys as method `replay`."""
    named = trainings(config, "replay", ReplayOptions(fraction=0.3))
    told = trainings(config, "plain", replay_fraction=0.3)
    assert [each.key for each in told] == [each.key for each in named]
    held, alone = trainings(config, "l2sp", replay_fraction=0.3), trainings(config, "l2sp")
    assert [list(each.recalled) for each in held] == [[], ["cs"], ["cs", "bio"]]
    assert held[0].key == alone[0].key
    assert held[1].key != alone[1].key


@pytest.mark.parametrize(
    ("kind", "mode", "general", "said"),
    [
        ("plain", "joint", 0.0, "every training run starts from the initial model"),
        ("plain", "separate", 0.0, "every training run starts from the initial model"),
        ("merge", "continual", 0.0, "every training run starts from the initial model"),
        ("one", "continual", 0.0, "every training run starts from the initial model"),
        ("joint", "continual", 0.0, "every training run starts from the initial model"),
        ("replay", "continual", 0.0, r"replay_fraction and replay\.fraction both"),
        ("plain", "continual", 0.8, r"0.2 and mixture.replay_fraction 0.8 leave no rows"),
    ],
)
def test_an_impossible_share_of_past_text_is_refused(
    config: Config, kind: str, mode: Any, general: float, said: str
) -> None:
    mixed = replace(config, mixture=MixtureConfig(replay_paths="data/more.jsonl", replay_fraction=general))
    with pytest.raises(ConfigError, match=said):
        trainings(mixed, kind, mode=mode, replay_fraction=0.2)


def test_past_rows_are_equally_likely_and_have_their_share() -> None:
    mixture = Mixture.of([1000], 3, replay=[50], recalled=[30, 10], recalled_fraction=0.2)
    assert mixture.slots == (700, 200, 100)
    domain, *past, general = mixture.drawn(20_000)
    assert (domain, general) == (14_000, 2_000)
    assert past == [3_000, 1_000]  # 4,000 samples, divided like the domains' 30 and 10 rows
    assert mixture.epoch == -(-1000 * 1000 // 700)  # number of rows of the mixture per pass over the domain


def test_a_sequence_can_begin_with_one_domain(config: Config) -> None:
    """Checks that adding domains later does not change the key of the first domain's training."""
    first = replace(config, tasks=[], corpus=replace(config.corpus, sources=config.corpus.sources[:1]))
    (alone,), several = trainings(first, "replay"), trainings(config, "replay")
    assert (alone.key, alone.recalled) == (several[0].key, {})


def test_a_job_with_nothing_to_replay_is_refused(config: Config) -> None:
    alone = replace(config, method=MethodConfig("replay"), tasks=[])
    alone = replace(alone, corpus=replace(alone.corpus, sources=[], paths="data/cs.jsonl"))
    with pytest.raises(ConfigError, match="neither an earlier domain") as caught:
        dapt_stages(Context.of(alone))
    assert "mixture.replay_paths" in caught.value.fix


@pytest.mark.parametrize(("kind", "said"), [("replay", "neither an earlier domain"), ("merge", "there is one domain")])
def test_sources_that_are_mixed_in_one_training_are_not_domains(config: Config, kind: str, said: str) -> None:
    mixed = replace(config, method=MethodConfig(kind), tasks=[])
    with pytest.raises(ConfigError, match=said):
        dapt_stages(Context.of(mixed))
    dapt_stages(Context.of(replace(mixed, method=MethodConfig("plain"))))


def test_replay_without_a_budget_is_refused() -> None:
    values = {"corpus": {"paths": "a"}, "method": {"kind": "replay"}, "replay": {"fraction": 0}}
    with pytest.raises(ConfigError, match=r"replay\.fraction"):
        parse_values(values, DAPT, "test")


def test_shares_that_leave_no_rows_for_the_domain_are_refused(config: Config, tmp_path: Path) -> None:
    full = replace(config, mixture=MixtureConfig(replay_paths="data/more.jsonl", replay_fraction=0.6))
    with pytest.raises(ConfigError, match=r"replay.fraction 0.4 and mixture.replay_fraction 0.6 leave no rows"):
        Replay(ReplayOptions(fraction=0.4)).check(full, tmp_path)
    Replay(ReplayOptions(fraction=0.4)).check(config, tmp_path)


@pytest.mark.parametrize(("kind", "mode"), [("one", "separate"), ("joint", "joint")])
def test_one_and_joint_are_plain_training_in_a_mode(config: Config, kind: str, mode: Any) -> None:
    named, told = trainings(config, kind), trainings(config, "plain", mode=mode)
    assert [each.key for each in named] == [each.key for each in told]
    assert trainings(config, kind, mode=mode)[0].key == told[0].key
    assert len(named) == (len(DOMAINS) if kind == "one" else 1)


def test_a_method_with_a_mode_refuses_another_mode(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"method\.kind is one, but with sequence\.mode joint"):
        trainings(config, "one", mode="joint")
