"""Tests that words are counted only in trainable documents, and in documents from all parts of a corpus."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.heldout import is_heldout
from adapt.runner.digest import Digests
from adapt.support.errors import DataError
from adapt.vocabulary.corpus_texts import corpus_texts, measured_in
from tests.samples import sentences, write


def read(folder: Path, megabytes: float, heldout: float) -> list[str]:
    corpus = CorpusConfig(paths=str(folder), heldout_fraction=heldout)
    return list(corpus_texts(build_manifest(corpus, Digests(folder.parent / "digests")), corpus, megabytes))


def test_texts_are_not_held_out_and_have_about_the_configured_size(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    parts = [sentences(100, seed) for seed in range(3)]
    for number, texts in enumerate(parts):
        write(folder / f"{number}.jsonl", [{"text": text} for text in texts])
    every = [text for texts in parts for text in texts]
    assert sorted(read(folder, 200, 0.0)) == sorted(every)
    assert sorted(read(folder, 200, 0.3)) == sorted(text for text in every if not is_heldout(text, 0.3))
    some = read(folder, 0.006, 0.0)
    assert 6_000 <= sum(map(len, some)) < 7_000
    assert all(set(texts) & {*some} for texts in parts)


def test_too_many_broken_records_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"text": text}) for text in sentences(9)]
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in ["broken", *lines]))
    with pytest.raises(DataError, match="1 of 10 records are unreadable: 1 malformed JSON"):
        read(folder, 200, 0.0)


def test_texts_of_evaluation_sets_and_measured_documents_are_left_out(tmp_path: Path) -> None:
    texts = sentences(40, seed=5, shortest=20)
    tested, measured, copy = texts[3], texts[8], f"{texts[3]} and then some."
    file = write(tmp_path / "texts.jsonl", [{"text": text} for text in [*texts, copy, measured.upper()]])
    questions = write(tmp_path / "questions.jsonl", [{"text": tested}])
    corpus = CorpusConfig(paths=file, heldout_fraction=0.0, decontaminate=[EvaluationSet("questions", questions)])
    general = replace(corpus, paths=write(tmp_path / "general.jsonl", [{"text": measured}]), heldout_fraction=1.0)
    digests = Digests(tmp_path / "digests")
    known = measured_in(build_manifest(general, digests), replace(general, decontaminate=[]))
    found = list(corpus_texts(build_manifest(corpus, digests), corpus, 200, measured=known))
    assert sorted(found) == sorted({*texts} - {tested, measured})


def test_no_more_of_a_corpus_is_measured_than_its_share(tmp_path: Path) -> None:
    texts = sentences(200, seed=6)
    corpus = CorpusConfig(paths=write(tmp_path / "a.jsonl", [{"text": text} for text in texts]), heldout_fraction=0.3)
    known = measured_in(build_manifest(corpus, Digests(tmp_path / "digests")), corpus)
    assert [text for text in texts if known(text)] == [text for text in texts if is_heldout(text, 0.3)]
