"""Tests that blocks of text generated on Ray do not depend on interruptions, and that filters count dropped texts."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from adapt.config import CorpusConfig, EvaluationSet, GenerateConfig, ResourcesConfig, SynthesizeConfig
from adapt.corpus.cleaning import filters
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import Slice, build_manifest, read_slice
from adapt.corpus.heldout import keys_of
from adapt.corpus.screening import Screen
from adapt.embed.text_chunks import ReadPool
from adapt.generate import generate_blocks
from adapt.generate.block_files import BLOCKS, files_of_block, spent_seconds
from adapt.generate.generate_blocks import (
    PAIRS_FILE,
    FilterPart,
    MakeBlocks,
    filter_texts,
    join_blocks,
    make_texts,
    part_files,
    rewrite_texts,
)
from adapt.generate.makers import FromDecoder, Rewriting
from adapt.model.locate import Pretrained
from adapt.ray import runtime
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.stage.generate_text import cleaning_of
from adapt.support.errors import BudgetError
from adapt.support.schema import END_FILE
from tests.generate.toys import tiny_decoder
from tests.samples import sentences

pytestmark = pytest.mark.heavy

SECTION = GenerateConfig(temperatures=[0.7], min_length=2, max_length=20, seed=3, micro_batch=16, prompt_tokens=4)


def test_an_interrupted_generation_goes_on_and_ends_with_the_same_text(ray_cluster: None, tmp_path: Path) -> None:
    maker = FromDecoder(tiny_decoder(tmp_path / "model"), replace(SECTION, temperatures=[0.7, 1.3]), [])
    whole, again, documents = (tmp_path / name for name in ("whole", "again", "documents"))
    for folder in (whole, again, documents):
        folder.mkdir()
    figures = make_texts(maker, 1500, 20, whole, ResourcesConfig())
    lines = [json.loads(line) for file in part_files(whole) for line in file.read_text().splitlines()]
    assert figures.texts == len(lines)
    assert figures.tokens == sum(line["tokens"] for line in lines) >= 1500
    assert figures.tokens - sum(line["tokens"] for line in lines[-64:]) < 1500
    assert not (whole / "blocks").exists()
    # The killed run has left a finished block, and a block without its file of metrics.
    # Only the block without metrics is generated again.
    content = part_files(whole)[0].read_text().splitlines(keepends=True)
    text_file, figures_file = files_of_block(again, "00000001")
    text_file.parent.mkdir()
    text_file.write_text("".join(content[64:128]))
    known = {"texts": 64, "tokens": sum(each["tokens"] for each in lines[64:128]), "cut": 1000}
    figures_file.write_text(json.dumps(known))
    files_of_block(again, "00000000")[0].write_text("broken")
    resumed = make_texts(maker, 1500, 20, again, ResourcesConfig())
    assert [file.read_text() for file in part_files(again)] == [file.read_text() for file in part_files(whole)]
    assert resumed.tokens == figures.tokens
    assert resumed.cut >= 1000  # the finished block was not generated again
    assert make_texts(maker, 1500, 20, again, ResourcesConfig()) == resumed
    _rewritten(tmp_path, documents)


def _rewritten(root: Path, folder: Path) -> None:
    """Rewrites the documents of a corpus. Half of the corpus is held out."""
    texts = sentences(200, seed=1)
    (root / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = CorpusConfig(paths=str(root / "corpus.jsonl"), heldout_fraction=0.5)
    manifest = build_manifest(corpus, Digests())
    section = SynthesizeConfig(
        formats=["summary", "question"], temperatures=[1.0], top_p=1.0, min_length=2, max_length=10, document_tokens=16
    )
    maker = Rewriting(tiny_decoder(root / "model"), section)
    figures = rewrite_texts(maker, manifest, ReadPool(corpus), 1.0, folder, ResourcesConfig())
    keys = {str(key): text for key, text in zip(keys_of(texts).tolist(), texts, strict=True)}
    lines = [json.loads(line) for file in part_files(folder) for line in file.read_text().splitlines()]
    trained = {key for key in keys if int(key) >= 2**63}
    assert {line["source"] for line in lines} == trained
    assert figures.texts == len(lines) == 2 * len(trained)
    assert {line["positive"] for line in lines if "positive" in line} == {keys[key] for key in trained}


def test_a_speed_is_shown_after_some_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second block ends with the first, so the time between them says nothing about the speed."""
    clock, shown = [0.0], []

    class Lines:
        def update(self, parts: dict[str, str], now: int, of: int) -> None:
            shown.append(parts.get("speed"))

    def blocks() -> Iterator[dict[str, int]]:
        for seconds in (0.0, 0.01, 10.0):
            clock[0] += seconds
            yield {"texts": 64, "tokens": 500}

    monkeypatch.setattr(generate_blocks, "display", lambda *_: nullcontext(Lines()))
    monkeypatch.setattr(generate_blocks, "monotonic", lambda: clock[0])
    monkeypatch.setattr(runtime, "telling_stalls", lambda *_: nullcontext())
    generate_blocks.counts_of_blocks(blocks(), 3, tmp_path)
    assert shown == [None, None, "100 tokens/s"]


def test_no_block_is_made_once_the_budget_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "hide_unreserved_gpus", lambda: None)
    (tmp_path / BLOCKS).mkdir()
    (tmp_path / END_FILE).touch()
    text_file, figures_file = files_of_block(tmp_path, "0")
    text_file.touch()
    figures_file.write_text(json.dumps({"texts": 2, "seconds": 1.5}))
    actor = MakeBlocks(FromDecoder(Pretrained(tmp_path, tmp_path), SECTION, []), tmp_path, None)
    # block 0 is already finished, so it needs no budget
    assert actor(pa.table({"block": ["0"], "first": [0], "count": [2]}))["texts"] == [2]
    with pytest.raises(BudgetError, match="stopped before its next block"):
        actor(pa.table({"block": ["1"], "first": [2], "count": [2]}))
    assert spent_seconds(tmp_path) == 1.5


def test_filters_number_texts_like_the_search_for_copies(tmp_path: Path) -> None:
    """The filter numbers texts like the search for near copies, because both read the same lines of each byte range."""
    file = tmp_path / "part-00000.jsonl"
    texts = ["first text of all", "x" * (1 << 20), "", "second text of all", "third text of all"]
    lines = [json.dumps({"text": text, "tokens": 3}) + "\n" if text else "\n" for text in texts]
    file.write_text("".join(lines))
    corpus = CorpusConfig(max_record_mib=1, cleaning=[], heldout_fraction=0.0)
    found, dropped = list[str](), dict[str, int]()
    middle = len("".join(lines[:3])) + 1
    for part in (Slice(str(file), 0, middle), Slice(str(file), middle)):
        batch = {"item": [0], "sources": [json.dumps([asdict(part)])]}
        (row,) = (each for table in FilterPart(corpus, Screen())(batch) for each in table.to_pylist())
        mine = [json.loads(line)["text"] for line in row["lines"]]
        assert mine == [text for text in read_slice(part, corpus) if not isinstance(text, Bad)]
        found += mine
        dropped |= json.loads(row["dropped"])
    assert found == [texts[0], *texts[3:]]
    assert dropped == {"longer than corpus.max_record_mib": 1}


class FakeClassifier:
    """Says that a text is German if it has the word `und`, and English otherwise."""

    labels = ("de", "en")

    def classify(self, text: str) -> tuple[str, float]:
        return "de" if "und" in text.split() else "en", 0.9


def test_texts_in_other_languages_are_dropped_if_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "language_classifier", FakeClassifier)
    records = [{"text": "loss of the model", "tokens": 5}, {"text": "Modell und Text", "tokens": 7}]
    file = tmp_path / "part-00000.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    batch = {"item": [0], "sources": [json.dumps([asdict(Slice(str(file), 0))])]}
    corpus = CorpusConfig(cleaning=cleaning_of(GenerateConfig(cleaning=["repetition", "language"]), CorpusConfig()))
    ((row,),) = (table.to_pylist() for table in FilterPart(corpus, Screen())(batch))
    assert [json.loads(line)["text"] for line in row["lines"]] == ["loss of the model"]
    assert json.loads(row["dropped"]) == {"language de": 1}
    assert json.loads(row["dropped_tokens"]) == {"language de": 7}


def test_texts_that_the_maker_marks_are_dropped_for_its_reason(tmp_path: Path) -> None:
    records = [{"text": "loss of the model", "tokens": 5}, {"text": "", "tokens": 7, "dropped": "unfinished reasoning"}]
    file = tmp_path / "part-00000.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    batch = {"item": [0], "sources": [json.dumps([asdict(Slice(str(file), 0))])]}
    ((row,),) = (table.to_pylist() for table in FilterPart(CorpusConfig(cleaning=[]), Screen())(batch))
    assert json.loads(row["dropped"]) == {"unfinished reasoning": 1}
    assert json.loads(row["dropped_tokens"]) == {"unfinished reasoning": 7}


def test_filters_drop_copies_repetition_evaluation_texts_and_text_of_measured_documents(
    ray_cluster: None, tmp_path: Path
) -> None:
    (tmp_path / "blocks").mkdir()
    good, asked, general = sentences(60, seed=2, shortest=25), sentences(3, seed=3, shortest=25), sentences(5, seed=4)
    lines = [
        *({"text": text, "tokens": 10, "temperature": 1.0} for text in good),
        {"text": good[5] + " and", "tokens": 11, "temperature": 1.3},
        {"text": "model " * 60, "tokens": 12, "temperature": 1.0},
        {"text": "short", "tokens": 13, "temperature": 1.0},
        {"text": f"{asked[0]} {good[0].swapcase()[:10]}", "tokens": 14, "temperature": 1.0},
        {"text": general[0], "tokens": 15, "temperature": 1.0},
        {"text": "which layer of the model has the largest loss?", "tokens": 16, "format": "question", "positive": "d"},
    ]
    text_file, figures_file = files_of_block(tmp_path, "00000000")
    text_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures_file.write_text(json.dumps({"texts": len(lines)}))
    join_blocks(tmp_path, ["00000000"])
    for name, texts in (("asked", asked), ("general", general)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    base = CorpusConfig(decontaminate=[EvaluationSet("asked", str(tmp_path / "asked.jsonl"))])
    settings = {"deduplicate": "near", "heldout_fraction": 0.0}
    corpus = replace(base, cleaning=cleaning_of(GenerateConfig(), base), **settings)  # type: ignore[arg-type]
    measured = replace(CorpusConfig(), paths=str(tmp_path / "general.jsonl"), heldout_fraction=1.0, deduplicate="near")
    before = [("general", build_manifest(measured, Digests()), measured)]
    folder = tmp_path / "filter"
    folder.mkdir()
    counts = filter_texts(tmp_path, corpus, folder, folder / TEXTS_FILE, before=before)
    assert counts.dropped == {
        "duplicate": 1,
        "repeated words": 1,
        "too short": 1,
        "in evaluation set asked": 1,
        "measured": 1,
    }
    assert counts.dropped_tokens == {
        "duplicate": 11,
        "repeated words": 12,
        "too short": 13,
        "in evaluation set asked": 14,
        "measured": 15,
    }
    assert (counts.texts, counts.tokens, counts.pairs) == (60, 616, 1)
    written = [json.loads(line) for line in (folder / TEXTS_FILE).read_text().splitlines()]
    assert [line["text"] for line in written] == good
    assert json.loads((folder / PAIRS_FILE).read_text()) == {"query": lines[-1]["text"], "positive": "d"}
