"""Tests that wrong sequences of domains are refused before anything runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, MethodConfig, SequenceConfig, SourceConfig
from adapt.job.sequence_job import SEQUENCE_JOB, sequence_stages
from adapt.parse import check_config
from adapt.runner import Done
from adapt.stage import train
from adapt.stage.context import Context, DomainOrder
from adapt.stage.domain_sequence import Sequence
from adapt.support.errors import ConfigError
from tests.job.worlds import DOMAINS, sequence_world, source
from tests.stage.done import done_of, record_of


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


# --- a sequence that has begun


class StoppedError(Exception):
    """The exception that ends a job when the training of a domain starts."""


def begin(config: Config, monkeypatch: pytest.MonkeyPatch, domains: int = 3) -> None:
    """Starts a sequence, and raises StoppedError at the training of a domain."""

    def stop(*_: Any) -> None:
        raise StoppedError

    monkeypatch.setattr(train, "sized", stop)
    training = built(config).steps[domains - 1].training
    done: Done = done_of(*(record_of(stage) for stage in training.inputs.values()))
    with pytest.raises(StoppedError):
        training.run(Path("folder"), done)


def test_a_sequence_changed_in_the_middle_is_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(config, monkeypatch)
    built(with_sources(config, *map(source, (*DOMAINS, "more"))))
    built(config, order=["cs", "bio"])
    renamed = with_sources(config, *(replace(each, name=f"{each.name}-2") for each in config.corpus.sources))
    built(replace(renamed, tasks=[]))
    with pytest.raises(ConfigError, match="sequence das: domain 2 was bio and is now reviews"):
        built(config, order=["cs", "reviews", "bio"])
    built(replace(config, name="other"), order=["cs", "reviews", "bio"])
    Path("data/bio.jsonl").write_text(json.dumps({"text": "new text"}) + "\n")
    changed = "the text of domain 2, bio, or how it is read or decontaminated, has changed"
    with pytest.raises(ConfigError, match=changed):
        built(config)


def test_domains_that_have_not_begun_can_be_reordered(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(config, monkeypatch, domains=1)
    built(config, order=["cs", "reviews", "bio"])
    with pytest.raises(ConfigError, match="domain 1 was cs and is now bio"):
        built(config, order=["bio", "cs"])


def test_a_run_with_fewer_domains_keeps_the_record_of_those_begun(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(config, monkeypatch)
    file = Path(config.storage.root) / "sequence" / "das.order.json"
    known = json.loads(file.read_text())
    assert [name for name, _ in known] == list(DOMAINS)
    DomainOrder(file, tuple((name, key) for name, key in known[:1])).save()
    assert json.loads(file.read_text()) == known
