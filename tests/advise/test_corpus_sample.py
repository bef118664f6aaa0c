"""Tests samples of corpora, and the estimated size of the whole corpus."""

import gzip
import json
from pathlib import Path

import pytest

from adapt.advise import corpus_sample
from adapt.advise.corpus_sample import joined_samples, sample_corpus
from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.files.manifest import build_manifest
from adapt.runner.digest import Digests
from tests.samples import sentences, write

TEXTS = sentences(400, seed=1)


def sampled(
    folder: Path, texts: list[str], most: int = 50, name: str = "a.jsonl.gz", parts: int = 1
) -> corpus_sample.Sample:
    for part in range(parts):
        content = "".join(json.dumps({"text": text}) + "\n" for text in texts[part::parts]).encode()
        (folder / f"{part}-{name}").write_bytes(gzip.compress(content, 6) if name.endswith(".gz") else content)
    corpus = CorpusConfig(paths=str(folder / f"*{name}"), cleaning=[{"length": {"min_characters": 20}}])
    return sample_corpus(build_manifest(corpus, Digests(folder / "digests.json")), corpus, most)


def test_a_small_corpus_is_counted(tmp_path: Path) -> None:
    found = sampled(tmp_path, [*TEXTS, "short", ""], parts=3)
    assert (found.documents, found.is_exact) == (400, True)
    assert found.bytes == sum(len(text.encode()) for text in TEXTS)


def test_documents_are_drawn_from_the_whole_corpus(tmp_path: Path) -> None:
    found = sampled(tmp_path, TEXTS, most=50)
    assert len(set(found.texts)) == 50
    assert set(found.texts) <= set(TEXTS)
    places = sorted(TEXTS.index(text) for text in found.texts)
    assert places[0] < 100 < 300 < places[-1]
    assert found.texts == sampled(tmp_path, TEXTS, most=50).texts


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("parts", [1, 4])
def test_the_size_of_a_large_corpus_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parts: int
) -> None:
    texts = sentences(4000, seed=1)
    # the sample reads at most 120,000 of the corpus's 370,000 bytes
    monkeypatch.setattr(corpus_sample, "READ_BYTES", 120_000)
    found = sampled(tmp_path, texts, name=name, parts=parts)
    assert found.documents
    assert found.bytes
    assert not found.is_exact
    assert found.documents == pytest.approx(4000, rel=0.15)
    assert found.bytes == pytest.approx(sum(map(len, texts)), rel=0.15)


def test_texts_of_evaluation_sets_are_left_out(tmp_path: Path) -> None:
    texts = sentences(50, seed=2, shortest=20)
    questions = write(tmp_path / "questions.jsonl", [{"text": texts[7]}])
    file = write(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    corpus = CorpusConfig(paths=file, decontaminate=[EvaluationSet("questions", questions)])
    found = sample_corpus(build_manifest(corpus, Digests(tmp_path / "digests.json")), corpus, 100)
    assert sorted(found.texts) == sorted({*texts} - {texts[7]})


def test_samples_of_several_sources_are_joined(tmp_path: Path) -> None:
    first, second = corpus_sample.Sample(["a"], 10, 100, True), corpus_sample.Sample(["b"], 5, 50, False)
    both = joined_samples([first, second])
    assert (sorted(both.texts), both.documents, both.bytes, both.is_exact) == (["a", "b"], 15, 150, False)
    unknown = joined_samples([first, corpus_sample.Sample(["c"], None, None, False)])
    assert (unknown.documents, unknown.bytes) == (None, None)
