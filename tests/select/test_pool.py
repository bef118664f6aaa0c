"""The documents of a pool: where each came from, whatever is dropped and however reading is cut."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import CorpusConfig
from adapt.corpus.files import sources
from adapt.corpus.files.manifest import build_manifest
from adapt.runner.digest import Digests
from adapt.select.pool import Document, Pool
from tests.samples import write

TEXTS = [f"document number {number} of the pool" for number in range(12)]


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    """Three files; every third document is too short, and a line is no record."""
    (tmp_path / "pool").mkdir()
    lines = [{"text": "short" if number % 3 == 2 else text} for number, text in enumerate(TEXTS)]
    for number in range(3):
        write(tmp_path / "pool" / f"{number}.jsonl", lines[4 * number : 4 * number + 4])
    with (tmp_path / "pool" / "1.jsonl").open("a") as file:
        file.write("no record\n")
    return CorpusConfig(
        paths=str(tmp_path / "pool"), cleaning=[{"length": {"min_characters": 10}}], max_bad_fraction=1.0
    )


def pool_of(corpus: CorpusConfig) -> Pool:
    return Pool(build_manifest(corpus, Digests()), corpus)


def places(pool: Any) -> list[tuple[str, int, int, int]]:
    return [(str(text), text.id, text.part, text.record) for text in pool]


def test_a_document_knows_its_record_whatever_is_dropped(corpus: CorpusConfig) -> None:
    found = places(pool_of(corpus))
    kept = [number for number in range(12) if number % 3 != 2]
    assert [text for text, *_ in found] == [TEXTS[number] for number in kept]
    assert [(part, record) for *_, part, record in found] == [(number // 4, number % 4 + 1) for number in kept]
    assert [id for _, id, *_ in found] == [
        number + (number >= 8) for number in kept
    ]  # the broken line has a number too
    assert places(pool_of(replace(corpus, cleaning=[])))[3:5] == [(TEXTS[3], 3, 0, 4), (TEXTS[4], 4, 1, 1)]


def test_every_iteration_reads_the_same_and_counts_it_anew(corpus: CorpusConfig) -> None:
    pool = pool_of(corpus)
    assert places(pool) == places(pool)
    assert (pool.tally.kept, pool.tally.dropped, pool.tally.bad) == (8, {"too short": 4}, {"malformed JSON": 1})


def test_how_reading_is_cut_changes_nothing(corpus: CorpusConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = places(pool_of(corpus))
    monkeypatch.setattr(sources, "ITEM_BYTES", 70)
    pool = pool_of(corpus)
    assert len(sources.items_of(pool.manifest, corpus)) > 6
    assert places(pool) == whole


def test_one_file_or_several_give_the_same_ids(corpus: CorpusConfig, tmp_path: Path) -> None:
    joined = "".join((tmp_path / "pool" / f"{number}.jsonl").read_text() for number in range(3))
    (tmp_path / "all.jsonl").write_text(joined)
    one = places(pool_of(replace(corpus, paths=str(tmp_path / "all.jsonl"))))
    assert [each[:2] for each in one] == [each[:2] for each in places(pool_of(corpus))]


def test_a_narrowed_pool_has_the_documents_of_those_ids_in_the_pools_order(corpus: CorpusConfig) -> None:
    pool = pool_of(corpus)
    some = pool.narrowed(np.array([10, 0, 4, 4, 99]))
    assert [text.id for text in some] == [0, 4, 10]
    assert [text.id for text in some.narrowed(np.array([4, 10]))] == [4, 10]
    assert list(pool.narrowed(np.zeros(0, np.int64))) == []


def test_a_document_is_its_text_and_goes_to_other_processes_with_its_place() -> None:
    import pickle

    document = pickle.loads(pickle.dumps(Document("a text", 2**40, 3, 4)))
    assert document == "a text"
    assert (document.id, document.part, document.record) == (2**40, 3, 4)
    assert json.dumps(document) == '"a text"'
