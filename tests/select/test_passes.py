"""Tests that passes over a pool by many processes choose the same documents as one process, bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, ResourcesConfig, SelectConfig
from adapt.corpus.cluster_calls import Cluster
from adapt.corpus.files import manifest
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.minhash import DuplicateRule
from adapt.runner.digest import Digests
from adapt.select import pool as pools
from adapt.select.choose import Budget, Choice, choose
from adapt.select.pool import Document, Pool
from adapt.select.selection import Given
from adapt.select.table import steps_of
from adapt.support.errors import DataError
from tests.samples import sentences, write

TARGET = [f"gradient layer {text}" for text in sentences(30, seed=5, shortest=4, longest=9)]
KINDS: dict[str, Any] = {
    "random": "random",
    "dsir": "dsir",
    "classifier": [{"classifier": {"rounds": 2, "sample": 50}}],
    "list": [{"dsir": {"noise": 0.0}}, "random", {"classifier": {"ngram": 1}}],
}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusConfig:
    """Returns a corpus of three files, which are divided into at least eight items (parts that one process reads)."""
    monkeypatch.setattr(manifest, "ITEM_BYTES", 7000)
    monkeypatch.setattr(pools, "SMALL_BYTES", 0)
    (tmp_path / "pool").mkdir()
    texts = [*sentences(300, seed=1), *TARGET[:5], *sentences(100, seed=2)]
    for number in range(3):
        write(tmp_path / "pool" / f"{number}.jsonl", [{"text": text} for text in texts[number::3]])
    return CorpusConfig(paths=str(tmp_path / "pool"))


def pool_of(corpus: CorpusConfig, is_spread: bool = False) -> Pool:
    cluster = Cluster(ResourcesConfig(), Path(corpus.paths).parent) if is_spread else None
    return Pool(build_manifest(corpus, Digests()), corpus, cluster=cluster)


def chosen(pool: Pool, kind: Any) -> Choice:
    selections = [step.selection for step in steps_of(Config(select=SelectConfig(kind=kind)))]
    given = Given(pool, TARGET, Config())
    return choose(
        selections, given, Budget(tokens=700), 3.0, DuplicateRule(near=True), lambda texts: [len(t) for t in texts]
    )


def test_the_cluster_chooses_the_same_documents_as_one_process(corpus: CorpusConfig, ray_cluster: None) -> None:
    items = manifest.items_of(pool_of(corpus).manifest, corpus)
    assert len(items) >= 8
    for name, kind in KINDS.items():
        alone, together = pool_of(corpus), pool_of(corpus, is_spread=True)
        expected, found = chosen(alone, kind), chosen(together, kind)
        assert len(expected.taken) > 5
        assert found == expected, name  # compares the documents and their scores
        assert [each.document.id for each in found.taken] == [each.document.id for each in expected.taken]
        assert together.tally == alone.tally
        assert together.tally.kept == 405


def test_an_error_in_another_process_is_reported_as_in_this_one(
    corpus: CorpusConfig, tmp_path: Path, ray_cluster: None
) -> None:
    pool = pool_of(corpus, is_spread=True)
    (tmp_path / "pool" / "1.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(DataError, match=r"1\.jsonl"):
        list(pool.each(_count))


def _count(documents: Iterator[Document]) -> int:
    return sum(1 for _ in documents)


def test_each_yields_results_in_order_and_a_narrowed_pool_skips_items(corpus: CorpusConfig) -> None:
    pool = pool_of(corpus)
    ids = [document.id for document in pool]
    counts = list(pool.each(_count))
    assert (sum(counts), pool.tally.kept) == (405, 405)
    assert len(counts) == len(manifest.items_of(pool.manifest, corpus))
    some = pool.narrowed(_array(ids[0], ids[1], ids[-1]))
    assert list(some.each(_count)) == [2, 1]
    assert some.tally.kept == counts[0] + counts[-1]  # the count covers the documents of all items that were read


def _array(*ids: int) -> Any:
    import numpy as np

    return np.array(ids, np.int64)


def test_a_small_pool_needs_no_cluster(corpus: CorpusConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "spread", None)
    pool = pool_of(corpus, is_spread=True)
    first = pool.narrowed(_array(0, 1))
    # both documents are in one item, so this process reads them without the cluster
    assert list(first.each(_count)) == [2]
    with pytest.raises(TypeError):
        list(pool.each(_count))
    monkeypatch.setattr(pools, "SMALL_BYTES", 10**6)
    assert sum(pool.each(_count)) == 405
    assert sum(replace(pool, cluster=None).each(_count)) == 405
