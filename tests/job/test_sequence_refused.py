"""Tests that wrong sequences of domains are refused before anything runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, MethodConfig, SequenceConfig, SourceConfig
from adapt.job.sequence_job import SEQUENCE_JOB, sequence_stages
from adapt.method.domain_parameters import PromptOptions
from adapt.parse import check_config
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence
from adapt.support.errors import ConfigError
from tests.job.worlds import DOMAINS, sequence_world, source


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return sequence_world(tmp_path, monkeypatch)


def built(config: Config, **changes: Any) -> Sequence:
    return sequence_stages(Context.of(replace(config, sequence=SequenceConfig(**changes))))


def with_sources(config: Config, *sources: SourceConfig) -> Config:
    return replace(config, corpus=replace(config.corpus, sources=list(sources)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": ["cs", "bio", "cs"]}, "names 'cs' twice"),
        ({"order": ["cs", "boi"]}, "did you mean bio"),
        ({"mode": "joint"}, "does not learn one domain after another"),
    ],
)
def test_wrong_sequences_are_refused(config: Config, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(config, **changes)
    assert message in f"{caught.value.what} {caught.value.fix}"


@pytest.mark.parametrize("name", ["general", "training"])
def test_reserved_names_of_domains_are_refused(config: Config, name: str) -> None:
    renamed = with_sources(config, replace(source("cs"), name=name), source("bio"))
    with pytest.raises(ConfigError, match=f"a domain cannot be called '{name}'"):
        built(replace(renamed, tasks=[]))


def test_one_text_under_two_names_is_refused(config: Config) -> None:
    Path("data/bio.jsonl").write_text(Path("data/cs.jsonl").read_text())
    with pytest.raises(ConfigError, match="cs and bio read the same text"):
        built(config)


def test_one_text_under_two_names_is_refused_with_near_copies_too(config: Config) -> None:
    twice = with_sources(config, *config.corpus.sources, replace(source("cs"), name="again"))
    with pytest.raises(ConfigError, match="cs and again read the same text"):
        built(replace(twice, corpus=replace(twice.corpus, deduplicate="near")))


def test_two_fields_of_one_file_are_two_texts(config: Config) -> None:
    fields = [replace(source("cs"), name=name, text_field=name) for name in ("text", "label")]
    assert len(built(replace(with_sources(config, *fields), tasks=[])).steps) == 2


def test_a_task_of_no_domain_is_refused(config: Config) -> None:
    stray = replace(config.tasks[0], name="stray")
    with pytest.raises(ConfigError, match=r"task stray: its domain 'stray' is none of corpus\.sources"):
        built(replace(config, tasks=[stray]))


def test_a_corpus_without_sources_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.sources is empty"):
        built(replace(config, corpus=CorpusConfig(paths="data/cs.jsonl")))


def test_a_streamed_corpus_is_refused(config: Config) -> None:
    plain = replace(config, method=MethodConfig("plain"))
    with pytest.raises(ConfigError, match=r"corpus\.streaming is set, but a sequence measures prepared text"):
        built(replace(plain, corpus=replace(config.corpus, streaming=True)))


def test_a_task_without_train_split_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match="tasks, entry 1: train is empty"):
        check_config(replace(config, tasks=[replace(config.tasks[0], train=[])]), SEQUENCE_JOB.kind)


def test_domains_before_a_change_are_not_trained_again(config: Config) -> None:
    """The keys of the training runs say which domains must be trained again; nothing is refused."""

    def keys(changed: Config, **changes: Any) -> list[str]:
        return [step.training.key for step in built(changed, **changes).steps]

    known = keys(config)
    more = keys(with_sources(config, *map(source, (*DOMAINS, "more"))))
    assert more[:3] == known
    assert keys(config, order=["cs", "bio"]) == known[:2]
    assert [old == new for old, new in zip(known, keys(config, order=["cs", "reviews", "bio"]), strict=True)] == [
        True,
        False,
        False,
    ]


def test_methods_are_checked_if_each_domain_has_its_own_model(config: Config) -> None:
    long = replace(config, method=MethodConfig("prompt"), method_options=PromptOptions(length=10_000))
    with pytest.raises(ConfigError, match=r"prompt\.length"):
        built(long, mode="separate")
