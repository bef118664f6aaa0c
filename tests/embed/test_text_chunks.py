"""Tests that the ids of texts depend neither on chunks nor on held-out documents."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import build_manifest, numbered_items
from adapt.corpus.screening import ITEM_IDS
from adapt.embed import text_chunks
from adapt.embed.text_chunks import ReadPool, read_lines
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.support.errors import DataError
from tests.samples import is_heldout, sentences, write

TEXTS = sentences(30)


def read(reader: Any, items: list[dict[str, Any]]) -> list[tuple[int, str]]:
    tables = [table for item in items for table in reader({name: [value] for name, value in item.items()})]
    rows = [table.to_pylist()[0] for table in tables]
    assert sum(bool(row["tally"]) for row in rows) == len(items)
    return [pair for row in rows for pair in zip(row["ids"], row["texts"], strict=True)]


@pytest.mark.parametrize("characters", [1, 300, 10**6])
@pytest.mark.parametrize("heldout", [0.0, 0.3])
def test_a_documents_id_is_its_item_and_its_record_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int, heldout: float
) -> None:
    monkeypatch.setattr(text_chunks, "EMBEDDED_CHARACTERS", characters)
    for number in range(2):
        some = [{"text": text} for text in ["!", *TEXTS[number::2], "!"]]  # the first and the last text are too short
        write(tmp_path / f"{number}.jsonl", some)
    corpus = replace(CorpusConfig(), paths=str(tmp_path), heldout_fraction=heldout)
    items = numbered_items(build_manifest(corpus, Digests()), corpus)
    expected = [
        (number * ITEM_IDS + place, text) for number in range(2) for place, text in enumerate(TEXTS[number::2], start=1)
    ]
    kept = [(number, text) for number, text in expected if not is_heldout(text, heldout)]
    assert read(ReadPool(corpus), items) == kept
    assert len(kept) == 30 if heldout == 0 else 5 < len(kept) < 30


@pytest.mark.parametrize("characters", [1, 100, 10**6])
def test_lines_keep_their_own_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int) -> None:
    monkeypatch.setattr(text_chunks, "EMBEDDED_CHARACTERS", characters)
    records = [{"id": 2**40 + 3 * number, "score": 0.5, "text": text} for number, text in enumerate(TEXTS)]
    write(tmp_path / TEXTS_FILE, records)
    assert read(read_lines, text_chunks.LinesSource(tmp_path / TEXTS_FILE).items()) == [
        (r["id"], r["text"]) for r in records
    ]


@pytest.mark.parametrize("line", ["no json", json.dumps({"text": "a"}), json.dumps({"id": None, "text": "a"}), "3"])
def test_a_line_without_id_or_text_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / TEXTS_FILE).write_text(json.dumps({"id": 1, "text": "a"}) + "\n" + line + "\n")
    with pytest.raises(DataError, match=rf"{TEXTS_FILE}, line 2: cannot read the fields id and text"):
        read(read_lines, text_chunks.LinesSource(tmp_path / TEXTS_FILE).items())
