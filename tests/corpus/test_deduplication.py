"""Tests that deduplication finds the same duplicates as a comparison of all pairs of documents.

The result must not depend on chunks, partitions or the order of tasks.
"""

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus import deduplication as module
from adapt.corpus import prepare_corpus as preparing
from adapt.corpus.deduplication import (
    Match,
    clusters,
    deduplicate,
    documents_left_out,
    merged,
    parts_of,
    reduced,
    sign_chunk,
    write_duplicates,
)
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.minhash import REACH, DuplicateRule, candidates
from adapt.corpus.prepare_corpus import prepare
from adapt.corpus.shingles import normalised, shingles
from adapt.model.locate import Pretrained
from adapt.runner.digest import Digests
from adapt.support.schema import duplicates_file
from tests.samples import is_heldout, sentences

NEAR = DuplicateRule(near=True)


def edited(text: str, changes: int, draw: random.Random) -> str:
    words = text.split()
    for place in draw.sample(range(len(words)), changes):
        words[place] = f"x{draw.randrange(1000)}"
    return " ".join(words)


def corpus_of(documents: int, seed: int = 0) -> list[str]:
    """Returns texts of 60 to 120 words in random order.

    A tenth of the texts have a copy in upper case with other spacing. A third have a copy with 1 to 8 changed words.
    """
    draw = random.Random(seed)
    texts = sentences(documents, seed, shortest=60, longest=120)
    copies = [f"  {text.upper()}\n" for text in draw.sample(texts, documents // 10)]
    near = [edited(text, draw.randint(1, 8), draw) for text in draw.sample(texts, documents // 3)]
    texts = [*texts, *copies, *near]
    draw.shuffle(texts)
    return texts


@cache
def shingle_set(text: str) -> frozenset[int]:
    return frozenset(shingles(normalised(text), 5).tolist())


def jaccard(text: str, other: str) -> float:
    return len(shingle_set(text) & shingle_set(other)) / len(shingle_set(text) | shingle_set(other))


def found(
    folder: Path,
    texts: Sequence[str],
    alike: DuplicateRule = NEAR,
    size: int = 50,
    partitions: int = 1,
    seed: int | None = None,
) -> dict[int, int]:
    """Finds duplicates, and maps each document in a cluster to the first document of the cluster.

    With a seed, chunks and partitions are processed in a random order.
    """
    draw = random.Random(seed)
    keys = [(0, start // size // 3, start // size % 3) for start in range(0, len(texts), size)]
    work = list(zip(keys, range(0, len(texts), size), strict=True))
    order = list(range(partitions))
    if seed is not None:
        draw.shuffle(work)
        draw.shuffle(order)
    chunks = []
    for key, start in work:
        sign_chunk(folder, key, texts[start : start + size], alike)
        documents = len(texts[start : start + size])
        chunks.append({"source": key[0], "item": key[1], "chunk": key[2], "documents": documents})
    match = Match(parts_of(folder, chunks), partitions, alike.threshold if alike.near else None)
    batches = [match({"id": np.array([partition])}) for partition in order]
    documents, firsts = clusters(merged(np.stack([b["first"], b["document"]], axis=1) for b in batches))
    return dict(zip(documents.tolist(), firsts.tolist(), strict=True))


def test_exact_duplicates_have_the_same_normalised_text(tmp_path: Path) -> None:
    texts = corpus_of(200)
    first: dict[str, int] = {}
    for number, text in enumerate(texts):
        first.setdefault(normalised(text), number)
    result = found(tmp_path, texts, DuplicateRule(near=False))
    assert {number for number, kept in result.items() if number != kept} == set(range(len(texts))) - set(first.values())
    assert all(kept == first[normalised(texts[number])] for number, kept in result.items())


def test_near_duplicates_agree_with_a_comparison_of_all_pairs(tmp_path: Path) -> None:
    """Pairs with a true similarity above .9 are always found, and pairs with a similarity below .7 are never found.

    The threshold is .8. The similarity is estimated from 256 positions, so 4 standard deviations are .1.
    """
    texts = corpus_of(150, seed=1)
    result = found(tmp_path, texts)
    alike = {(one, other): jaccard(texts[one], texts[other]) for one, other in combinations(range(len(texts)), 2)}
    sure = [pair for pair, similarity in alike.items() if similarity > 0.9]
    assert len(sure) > 15
    assert all(result.get(one) == result.get(other) is not None for one, other in sure)
    for number in result:
        assert max(alike[tuple(sorted((number, other)))] for other in result if other != number) > 0.7  # type: ignore[index]
    assert {number for number, kept in result.items() if number != kept} > {
        number for number, kept in found(tmp_path, texts, DuplicateRule(near=False)).items() if number != kept
    }


@pytest.mark.parametrize(("size", "partitions", "seed"), [(50, 2, 1), (50, 3, 2), (7, 1, 3), (400, 5, 4)])
def test_kept_documents_do_not_depend_on_chunks_partitions_and_order(
    tmp_path: Path, size: int, partitions: int, seed: int
) -> None:
    texts = corpus_of(150, seed=2)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    expected = found(tmp_path / "one", texts)
    assert len(expected) > 40
    assert found(tmp_path / "other", texts, NEAR, size, partitions, seed) == expected


def test_a_second_pass_finds_no_duplicates(tmp_path: Path) -> None:
    texts = corpus_of(150, seed=3)
    result = found(tmp_path, texts)
    kept = [text for number, text in enumerate(texts) if result.get(number, number) == number]
    (tmp_path / "again").mkdir()
    assert found(tmp_path / "again", kept) == {}


def test_short_texts_and_texts_without_words_are_duplicates_only_if_equal(tmp_path: Path) -> None:
    texts = ["!!!", "???", "!!!", "one two", "One  two", "one three", "…", "..."]
    assert found(tmp_path, texts) == {0: 0, 2: 0, 3: 3, 4: 3, 6: 6, 7: 6}  # NFKC replaces an ellipsis by three dots


@pytest.mark.parametrize("alike", [NEAR, DuplicateRule(near=False)])
def test_empty_chunks_and_sources(tmp_path: Path, alike: DuplicateRule) -> None:
    for chunk, texts in enumerate([[], ["a text"], [], ["a text"]]):
        sign_chunk(tmp_path, (0, chunk, 0), texts, alike)
    chunks = [{"source": 0, "item": n, "chunk": 0, "documents": n % 2} for n in (2, 1, 3, 0)]
    match = Match(parts_of(tmp_path, chunks), 1, None)
    assert match({"id": np.zeros(1, np.int64)})["document"].tolist() == [1]
    write_duplicates(tmp_path / duplicates_file(0), match.parts, np.array([1]), np.array(["why"]), 0)
    write_duplicates(tmp_path / duplicates_file(1), parts_of(tmp_path, []), np.zeros(0, np.int64), np.array([], str), 1)
    assert dropped(tmp_path, 0) == [(3, 0)]
    assert dropped(tmp_path, 1) == []
    assert Match(parts_of(tmp_path, []), 1, None)({"id": np.zeros(1, np.int64)})["document"].tolist() == []


def test_candidates_of_a_small_bucket_are_all_pairs() -> None:
    draw = np.random.default_rng(0)
    buckets, documents = draw.integers(0, 40, 200).astype(np.uint64), draw.integers(0, 100, 200)
    expected = {
        (min(documents[i], documents[j]), max(documents[i], documents[j]))
        for i, j in combinations(range(200), 2)
        if buckets[i] == buckets[j] and documents[i] != documents[j]
    }
    assert max(np.bincount(buckets.astype(int))) <= REACH + 1
    assert [tuple(pair) for pair in candidates(buckets, documents).tolist()] == sorted(expected)
    assert candidates(buckets[:0], documents[:0]).shape == (0, 2)


def test_a_large_bucket_links_all_documents_with_a_linear_number_of_pairs() -> None:
    pairs = candidates(np.zeros(5000, np.uint64), np.arange(5000))
    assert len(pairs) <= 5000 * (REACH + 1)
    assert set(clusters(pairs)[1].tolist()) == {0}


# Tests with Ray, from files to shards


def jsonl(path: Path, texts: Sequence[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.mark.usefixtures("ray_cluster")
def test_no_near_copy_is_both_trained_on_and_measured(tmp_path: Path, tiny_bert: Path) -> None:
    """Documents are dropped if an earlier corpus uses a near copy for the opposite purpose (training or measuring).

    The later corpus loses training documents with a near copy that is held out, and held-out documents with a near copy
    that is trained on.
    """
    draw, kept = random.Random(5), sentences(80, 6, shortest=60, longest=120)
    keep = CorpusConfig(deduplicate="near", heldout_fraction=0.3)
    before = {"general": kept[:20], "domain": kept[20:60]}
    later = [*(edited(text, 1, draw) for text in kept[:60]), *kept[60:], kept[60].upper(), kept[20].title()]
    corpora = {
        "general": replace(keep, heldout_fraction=1.0),
        "domain": keep,
        "later": keep,
        "mixed in": replace(keep, deduplicate="none"),
    }
    texts = {**before, "later": later, "mixed in": later}
    digests = Digests(tmp_path / "digests.json")

    def listed(name: str) -> Any:
        corpus = replace(corpora[name], paths=jsonl(tmp_path / f"{name}.jsonl", texts[name]))
        return name, build_manifest(corpus, digests), corpus

    def out(name: str, text: str) -> bool:
        return is_heldout(text, corpora[name].heldout_fraction)

    def fits(text: str) -> bool:
        """Returns whether all near copies in earlier corpora have the same purpose as the text: training or held out.

        Edited texts have a similarity of about .85 to their originals, so texts above .8 count as near copies.
        """
        alike = [(name, one) for name, some in before.items() for one in some if jaccard(one, text) > 0.8]
        return all(out(name, one) == out("later", text) for name, one in alike)

    first = [listed(name) for name in before]
    for name, repeated in (("later", 1), ("mixed in", 0)):
        (tmp_path / name).mkdir()
        source = listed(name)
        metrics = deduplicate([source], NEAR, tmp_path / name, None, first)
        expected = [number for number, text in enumerate(later) if not fits(text)]
        twice = [80] if repeated else []  # document 80 is the upper-case copy of document 60
        twice += [81] if repeated and 81 not in expected else []
        assert dropped(tmp_path / name, 0) == [(0, number) for number in sorted({*expected, *twice})]
        assert metrics["on_the_other_side"] == len(expected)
        (tmp_path / f"{name} prepared").mkdir()
        result = prepare(
            source[1],
            source[2],
            Pretrained(tiny_bert, tiny_bert),
            tmp_path / f"{name} prepared",
            duplicates=tmp_path / name / duplicates_file(0),
        )
        counts = {
            "measured": sum(not out("later", later[number]) for number in expected),
            "trained on elsewhere": sum(out("later", later[number]) for number in expected),
            "duplicate": len(twice),
        }
        assert result["dropped"] == {reason: count for reason, count in counts.items() if count}
        assert min(counts["measured"], counts["trained on elsewhere"]) > 5


def dropped(folder: Path, source: int) -> list[tuple[int, int]]:
    with pa.memory_map(str(folder / duplicates_file(source))) as file:
        table = pa.ipc.open_file(file).read_all()
    return list(zip(*(table.column(name).to_pylist() for name in ("item", "ordinal")), strict=True))


@pytest.fixture
def texts() -> list[str]:
    return corpus_of(120, seed=4)


@pytest.mark.usefixtures("ray_cluster")
def test_two_sources_from_files_to_shards(
    tmp_path: Path, texts: list[str], tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicates are found across files and sources. Stage `prepare` drops them and writes them to the rejects."""
    monkeypatch.setattr(preparing, "CHUNK_CHARACTERS", 9000)
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 5000)
    monkeypatch.setattr(module, "ENTRIES_PER_PARTITION", 2000)
    exam = jsonl(tmp_path / "exam.jsonl", [texts[3]])
    settings: dict[str, Any] = {
        "deduplicate": "near",
        "max_bad_fraction": 0.5,
        "write_rejects": True,
        "decontaminate": [EvaluationSet("exam", exam)],
        "heldout_fraction": 0.0,
    }
    first = [jsonl(tmp_path / "a.jsonl", ["short", *texts[:50]]), jsonl(tmp_path / "b.jsonl", texts[50:90])]
    Path(first[0]).write_text("broken\n" + Path(first[0]).read_text())
    second = [jsonl(tmp_path / "c.jsonl", texts[90:])]
    corpora = [CorpusConfig(paths=paths, **settings) for paths in (first, second)]
    digests = Digests(tmp_path / "digests.json")
    sources = [(name, build_manifest(c, digests), c) for name, c in zip("ab", corpora, strict=True)]
    out = tmp_path / "dedup"
    (out / "work").mkdir(parents=True)
    (out / "work" / "leftover.arrow").write_text("half")
    metrics = deduplicate(sources, DuplicateRule.of(corpora[0]), out, None)

    contaminated = [jaccard(text, texts[3]) > 0.5 for text in texts]
    clean = [text for text, out_ in zip(texts, contaminated, strict=True) if not out_]
    (tmp_path / "alone").mkdir()
    alone = found(tmp_path / "alone", clean)
    expected = {number for number, kept in alone.items() if number != kept}
    places = [
        (source, item, ordinal)
        for source, item, part in ((0, 0, slice(0, 50)), (0, 1, slice(50, 90)), (1, 0, slice(90, None)))
        for ordinal in range(contaminated[part].count(False))
    ]
    wanted = [places[number] for number in sorted(expected)]
    assert [(source, *place) for source in (0, 1) for place in dropped(out, source)] == wanted
    assert {source for source, *_ in wanted} == {0, 1}
    assert metrics["documents"] == len(clean)
    assert metrics["duplicates"] == len(expected)
    assert metrics["by_source"]["b"]["duplicates"] == sum(source for source, *_ in wanted)
    assert metrics["clusters"] == len(set(alone.values()))
    assert not (out / "work").exists()

    pretrained = Pretrained(tiny_bert, tiny_bert)
    for number, (_, manifest, corpus) in enumerate(sources):
        folder = tmp_path / f"prepared-{number}"
        folder.mkdir()
        result = prepare(manifest, corpus, pretrained, folder, duplicates=out / duplicates_file(number))
        mine = contaminated[:90] if number == 0 else contaminated[90:]
        copies = sum(source == number for source, *_ in wanted)
        reasons = {"duplicate": copies, "in evaluation set exam": mine.count(True), "too short": number == 0}
        assert result["dropped"] == {reason: count for reason, count in reasons.items() if count}
        assert result["evaluation_texts"] == {"exam": {exam: 1}}
        assert result["train_documents"] == mine.count(False) - copies
        lines = [
            json.loads(line)
            for file in sorted((folder / "rejects").glob("*.jsonl.gz"))
            for line in gzip.decompress(file.read_bytes()).splitlines()
        ]
        assert len(lines) == sum(result["dropped"].values())
        assert {line["reason"] for line in lines} == result["dropped"].keys()


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60)


def searched(pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Maps each document to the smallest document number in its connected component, by brute force."""
    reached = {document: {document} for pair in pairs for document in pair}
    for _ in reached:
        for one, other in pairs:
            both = reached[one] | reached[other]
            for document in both:
                reached[document] = both
    return {document: min(others) for document, others in reached.items()}


def clusters_of(pairs: np.ndarray) -> dict[int, int]:
    return dict(zip(*(column.tolist() for column in clusters(pairs)), strict=True))


@given(PAIRS)
def test_clusters_agree_with_a_brute_force_search(pairs: list[tuple[int, int]]) -> None:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    assert clusters_of(array) == searched(pairs)


@given(PAIRS, st.randoms(use_true_random=False))
def test_reduced_pairs_do_not_depend_on_order_and_partial_reduction(pairs: list[tuple[int, int]], draw: object) -> None:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    shuffled = pairs.copy()
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    other = np.array(shuffled, np.int64).reshape(-1, 2)
    half = len(other) // 2
    parts = np.concatenate([reduced(other[:half]), reduced(other[half:])])
    linked = reduced(parts)
    assert linked.tolist() == reduced(array).tolist()
    assert reduced(linked).tolist() == linked.tolist()
    assert len(linked) == sum(document != first for document, first in searched(pairs).items())


@given(
    # each tuple has the source and cluster of a document, and whether the document is held out
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=40),
    st.integers(0, 3),
)
def test_no_kept_document_has_a_copy_in_its_source_or_on_the_other_side(
    drawn: list[tuple[int, int, bool]], before: int
) -> None:
    documents = sorted(drawn, key=lambda document: document[0])
    sources, clusters, heldout = (
        (np.array(column) for column in zip(*documents, strict=True)) if documents else [[]] * 3
    )
    found = {number: list(clusters).index(number) for number in set(clusters)}
    firsts = np.array([found[number] for number in clusters], np.int64)
    sources, heldout = np.array(sources, np.int64), np.array(heldout, bool)
    duplicate, opposed = documents_left_out(firsts, sources, heldout, before)
    for number, (source, cluster, out) in enumerate(documents):
        mine = [other for other in range(number) if documents[other][:2] >= (before,) and clusters[other] == cluster]
        beside = [other[2] for other in documents if other[0] < before and other[1] == cluster]
        assert duplicate[number] == (source >= before and bool(mine))
        assert opposed[number] == (source >= before and (not out) in beside)
