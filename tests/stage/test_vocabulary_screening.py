"""Tests that vocabulary changes leave out the same texts as training: evaluation texts, general text and copies."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, EvaluationSet
from adapt.job.measuring_jobs import change_vocabulary
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import Done, ensure
from adapt.stage.context import Context
from adapt.stage.text_sources import Files
from adapt.stage.vocabulary_stages import Screening, TeachRows
from tests.samples import sentences, write
from tests.stage.test_extend_vocabulary import asking, config, texts  # noqa: F401  a fixture

TESTED = "we propose a novel glimmerwort parser of glimmerwort that labels each glimmerwort clause with its role"
GENERAL = "the lighthouse of the northern island was a lighthouse when the lighthouse of the harbour was widened"


@pytest.fixture
def apart(config: Config, tmp_path: Path) -> Config:  # noqa: F811
    """Returns a configuration whose corpus has eleven near copies of an evaluation text and of a general text."""
    copies = [f"{text}{mark}" for text in (TESTED, GENERAL) for mark in ".!?,;:…-)("]
    paths = write(tmp_path / "domain.jsonl", [{"text": text} for text in [*texts(), *copies, TESTED, GENERAL]])
    tested = write(tmp_path / "test.jsonl", [{"text": TESTED}])
    general = write(tmp_path / "general.jsonl", [{"text": text} for text in [*sentences(5, 3), *copies, GENERAL]])
    sets = [EvaluationSet("questions", tested)]
    return replace(
        config,
        corpus=replace(config.corpus, paths=paths, decontaminate=sets, cleaning=[]),
        evaluation=replace(config.evaluation, general_paths=general),
    )


def words_of(folder: Path) -> set[str]:
    return {str(each.get("word")) for each in json.loads((folder / "words.json").read_text())}


@pytest.mark.parametrize("candidates", ["saved", "trained", "divergence"])
def test_no_new_token_comes_from_excluded_text(apart: Config, candidates: str) -> None:
    context = Context.of(asking(apart, size=50, min_count=2, candidates=candidates))
    found = words_of(ensure(change_vocabulary(context), context.store).path)
    assert "hepatitis" in found
    assert found.isdisjoint({"glimmerwort", "lighthouse"})


def test_no_tokenizer_is_trained_on_excluded_text(apart: Config) -> None:
    context = Context.of(asking(apart, action="scratch", size=250))
    tokenizer = load_tokenizer(ensure(change_vocabulary(context), context.store).path)
    assert tokenizer.tokenize("hepatitis") == ["hepatitis"]
    assert len(tokenizer.tokenize("glimmerwort")) > 1
    assert len(tokenizer.tokenize("lighthouse")) > 1


def test_words_are_not_counted_in_excluded_text(apart: Config) -> None:
    context = Context.of(asking(apart, action="analyze", min_count=2))
    domains = ensure(change_vocabulary(context), context.store).result.domains
    worst = {name: {word.word for word in found.worst} for name, found in domains.items()}
    assert "hepatitis" in worst["corpus"]
    assert worst["corpus"].isdisjoint({"glimmerwort", "lighthouse"})
    assert "lighthouse" in worst["(general)"]


def test_no_row_is_trained_on_excluded_text(apart: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context.of(asking(apart, init="distill", warmup_steps=2))
    stage = change_vocabulary(context)
    assert isinstance(stage, TeachRows)
    read: list[str] = []
    texts_of = Screening.texts

    def noted(
        self: Screening, domains: Mapping[str, Files], megabytes: float, seed: int, done: Done
    ) -> dict[str, Iterator[str]]:
        found = {name: list(texts) for name, texts in texts_of(self, domains, megabytes, seed, done).items()}
        read.extend(text for texts in found.values() for text in texts)
        return {name: iter(texts) for name, texts in found.items()}

    monkeypatch.setattr(Screening, "texts", noted)
    from adapt.stage import vocabulary_stages

    extended = ensure(stage.extended, context.store)
    read.clear()
    folder = extended.path.parent / "distilled"
    folder.mkdir()
    beginning: Any = stage.beginning
    vocabulary_stages.teach(beginning, Done({stage.extended.key: extended.record}), folder)
    assert sorted(read) == sorted(texts())


def test_keys_differ_only_if_documents_are_excluded(apart: Config) -> None:
    def what(config: Config) -> Mapping[str, Any]:  # noqa: F811
        return change_vocabulary(Context.of(config)).what()

    alone = replace(apart, evaluation=replace(apart.evaluation, general_paths=[]))
    plain = replace(alone, corpus=replace(apart.corpus, decontaminate=[]))
    assert what(apart)["measured"]["heldout_fraction"] == 1.0
    assert what(alone)["screened"]
    assert what(plain).keys().isdisjoint({"measured", "screened"})


@pytest.mark.usefixtures("ray_cluster")
def test_copies_count_once(apart: Config) -> None:
    """A word that only occurs in ten near copies of one text is counted once."""
    seeded = [*texts(), *[f"{sentences(1, 9, 40, 40)[0]} splenitis{mark}" for mark in ".!?,;:…-)("]]
    paths = write(Path(str(apart.corpus.paths)), [{"text": text} for text in seeded])
    near = replace(apart, corpus=replace(apart.corpus, paths=paths, deduplicate="near"))
    context = Context.of(asking(near, size=50, min_count=1))
    described = json.loads((ensure(change_vocabulary(context), context.store).path / "words.json").read_text())
    assert [each["count"] for each in described if each.get("word") == "splenitis"] == [1]
