"""Tests of the documents of a pool, and of the documents removed from it."""

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.files import manifest
from adapt.corpus.files.manifest import Manifest, build_manifest, numbered_items
from adapt.corpus.minhash import DuplicateRule
from adapt.corpus.screening import ITEM_IDS, id_at, place_of
from adapt.corpus.shingles import normalised, words
from adapt.embed import text_chunks as embedded
from adapt.embed.text_chunks import ReadPool
from adapt.embed.vector_files import read_vectors, write_vectors
from adapt.runner.digest import Digests
from adapt.select.choose import Taken
from adapt.select.pool import GENERAL, Document, MeasuredText, Pool, guards
from adapt.support.errors import AdaptError
from tests.corpus.test_heldout import shards
from tests.samples import write

TEXTS = [f"document number {number} of the pool" for number in range(12)]


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    """Returns a corpus of three files. Every third document is too short, and one line is not valid JSON."""
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


def places(pool: Pool) -> list[tuple[str, int, int]]:
    """Returns the text, file number and record number of each document."""
    found = []
    for text in pool:
        place = pool.place(text)
        assert place["start"] == 0
        found.append((str(text), place["part"], place["record"]))
    return found


def test_ids_of_documents_do_not_depend_on_dropped_records(corpus: CorpusConfig) -> None:
    kept = [number for number in range(12) if number % 3 != 2]
    assert places(pool_of(corpus)) == [(TEXTS[number], number // 4, number % 4 + 1) for number in kept]
    assert [document.id for document in pool_of(corpus)] == [number // 4 * ITEM_IDS + number % 4 for number in kept]
    assert places(pool_of(replace(corpus, cleaning=[])))[3:5] == [(TEXTS[3], 0, 4), (TEXTS[4], 1, 1)]


def test_a_broken_line_has_a_number_too(corpus: CorpusConfig, tmp_path: Path) -> None:
    file = tmp_path / "pool" / "0.jsonl"
    file.write_text("no record\n" + file.read_text())
    assert places(pool_of(corpus))[:2] == [(TEXTS[0], 0, 2), (TEXTS[1], 0, 3)]


def test_every_iteration_reads_and_counts_the_same(corpus: CorpusConfig) -> None:
    pool = pool_of(corpus)
    assert places(pool) == places(pool)
    assert (pool.tally.kept, pool.tally.dropped, pool.tally.bad) == (8, {"too short": 4}, {"malformed JSON": 1})


def test_a_large_file_is_several_items_and_a_document_knows_where_its_own_begins(
    corpus: CorpusConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [str(text) for text in pool_of(corpus)]
    monkeypatch.setattr(manifest, "ITEM_BYTES", 70)
    pool = pool_of(corpus)
    assert len(manifest.items_of(pool.manifest, corpus)) > 6
    found = list(pool)
    assert [str(text) for text in found] == whole
    assert len({text.id for text in found}) == len(found)
    for text in found:
        place = pool.place(text)
        content = Path(pool.manifest.parts[place["part"]].path).read_bytes()
        # offset at which the document's item begins in the file [bytes]
        begin = content.index(b"\n", place["start"] - 1) + 1 if place["start"] else 0
        line = content[begin:].split(b"\n")[place["record"] - 1]
        assert json.loads(line)["text"] == text


def test_items_and_ids_follow_from_the_manifest_alone(corpus: CorpusConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items (parts that one task reads) and document ids depend neither on the cores nor on dropped documents."""
    pool = pool_of(corpus)
    items, ids = numbered_items(pool.manifest, corpus), {str(text): text.id for text in pool}
    monkeypatch.setattr("os.cpu_count", lambda: 99)
    other = replace(corpus, cleaning=[], heldout_fraction=0.5, deduplicate="near")
    assert numbered_items(pool.manifest, other) == items
    more = {str(text): text.id for text in Pool(pool.manifest, other)}
    assert len(more) > len(ids)
    assert ids.items() <= more.items()


def test_a_narrowed_pool_has_the_documents_of_those_ids_in_the_pools_order(corpus: CorpusConfig) -> None:
    pool = pool_of(corpus)
    ids = [document.id for document in pool]
    some = pool.narrowed(np.array([ids[6], ids[0], ids[3], ids[3], 99, 2**60]))
    assert [text.id for text in some] == [ids[0], ids[3], ids[6]]
    assert [text.id for text in some.narrowed(np.array([ids[3], ids[4], ids[6]]))] == [ids[3], ids[6]]
    assert list(pool.narrowed(np.zeros(0, np.int64))) == []


def test_a_text_is_found_by_its_id_and_no_other_file_is_read(corpus: CorpusConfig, tmp_path: Path) -> None:
    pool = pool_of(corpus)
    wanted = {document.id: str(document) for document in pool if pool.place(document)["part"] == 1}
    for number in (0, 2):
        (tmp_path / "pool" / f"{number}.jsonl").unlink()
    assert {text.id: str(text) for text in pool.narrowed(np.array(list(wanted)))} == wanted
    with pytest.raises(AdaptError):
        list(pool)


def test_the_vectors_and_the_documents_of_a_pool_have_the_same_ids(
    corpus: CorpusConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "ITEM_BYTES", 100)
    monkeypatch.setattr(embedded, "EMBEDDED_CHARACTERS", 40)
    pool = pool_of(corpus)
    reader, items = ReadPool(corpus), numbered_items(pool.manifest, corpus)
    tables = [table for item in items for table in reader({name: [value] for name, value in item.items()})]
    rows = [table.to_pylist()[0] for table in tables]
    found = [pair for row in rows for pair in zip(row["ids"], row["texts"], strict=True)]
    assert len(items) > 4
    assert found == [(document.id, str(document)) for document in pool]


@pytest.mark.parametrize("id", [2**24 + 1, 2**32 - 1, 2**32 + 1, 2**53 + 1, 2**62 + 1])
def test_ids_survive_files_arrays_and_other_processes(id: int, tmp_path: Path) -> None:
    """Covers ids that float32 and float64 cannot distinguish from their neighbours."""
    document = pickle.loads(pickle.dumps(Document("a text", id)))
    assert (document, document.id) == ("a text", id)
    assert json.dumps(document) == '"a text"'
    line = json.loads(json.dumps(Taken(document, 0.5, 2).line({"part": 0, "start": 0, "record": 1})))
    assert (line["id"], line["text"]) == (id, "a text")
    write_vectors(tmp_path / "v.parquet", np.array([id - 1, id]), np.ones((2, 3), np.float16), {})
    assert read_vectors(tmp_path / "v.parquet")[0].tolist() == [id - 1, id]
    assert Pool(Manifest([]), CorpusConfig()).narrowed(np.array([id, id - 1])).ids == pytest.approx([id - 1, id], abs=0)
    assert id_at(*place_of(id)) == id


WORDS = [f"w{number}" for number in range(300)]
PLAIN = CorpusConfig(cleaning=[])


def texts(count: int, seed: int, length: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=length)) for _ in range(count)]


def changed(text: str, number: int, seed: int) -> str:
    """Returns the text with `number` words at random positions replaced."""
    rng, parts = random.Random(seed), text.split()
    for place in rng.sample(range(len(parts)), number):
        parts[place] = "changed"
    return " ".join(parts)


def jaccard(one: str, other: str) -> float:
    sides = [words(normalised(text)) for text in (one, other)]
    runs = [{tuple(side[n : n + 5]) for n in range(len(side) - 4)} for side in sides]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


@pytest.fixture
def measured(tmp_path: Path) -> MeasuredText:
    """Returns general text of eight documents. The first five are held out and measured."""
    file = write(tmp_path / "general.jsonl", [{"text": text} for text in texts(8, 1)])
    shards(tmp_path / "general", texts(8, 1)[5:], texts(8, 1)[:5])
    corpus = replace(PLAIN, paths=file)
    return MeasuredText(tmp_path / "general", build_manifest(corpus, Digests()), corpus)


@pytest.mark.parametrize("length", [14, 20, 30, 60, 200])
def test_near_copies_of_test_texts_are_removed(length: int, tmp_path: Path) -> None:
    """A copy is near if its 5-grams have a Jaccard similarity of at least 0.8 with a test text (`corpus.near_*`)."""
    known = texts(20, 2, length)
    file = write(tmp_path / "test.jsonl", [{"text": text} for text in known])
    check = guards(replace(PLAIN, decontaminate=[EvaluationSet("test", file)]), [], []).sieve.contaminated
    assert check
    copies = [changed(text, number, seed) for seed, text in enumerate(known) for number in (0, 1, 2, 4)]
    copies += [variant for text in known for variant in (f"{text} more", text.upper(), f"more {text}", text[3:])]
    near = [
        copy
        for place, copy in enumerate(copies)
        if max(jaccard(copy, text) for text in known) >= DuplicateRule(True).threshold
    ]
    assert len(near) >= 60
    assert all(check(near))
    assert not any(check(texts(50, 3, length)))


def test_near_copies_and_parts_of_measured_text_are_removed(measured: MeasuredText) -> None:
    found = guards(PLAIN, [measured.folder], [measured])
    assert list(measured.texts()) == texts(8, 1)[:5]
    assert found.sieve.contaminated
    assert found.sieve.measured
    first, second, *_ = texts(8, 1)
    leaving = [first, changed(second, 1, 0), " ".join(second.split()[10:50]), f"{first} and so on"]
    assert all(reason == f"in evaluation set {GENERAL}" for reason in found.sieve.contaminated(leaving))
    staying = [*texts(8, 1)[5:], *texts(5, 4), " ".join([*first.split()[:14], *texts(1, 5)[0].split()])]
    assert not any(found.sieve.contaminated(staying))
    assert [bool(reason) for reason in found.sieve.measured([first.upper(), staying[0]])] == [True, False]


def test_without_guards_all_documents_pass() -> None:
    found = guards(PLAIN, [], [])
    assert found.sieve.contaminated is found.sieve.measured is None
    assert found.evaluation_texts == {}
