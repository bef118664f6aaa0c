"""Tests the progress of reading a corpus: the estimated share of finished work, and each stage's progress lines."""

import gzip
import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

from adapt.config import CorpusConfig
from adapt.corpus import read_progress
from adapt.corpus.corpora import PLAIN
from adapt.corpus.deduplication import deduplicate
from adapt.corpus.files.manifest import Manifest, build_manifest, numbered_items
from adapt.corpus.minhash import DuplicateRule
from adapt.corpus.prepare_corpus import prepare
from adapt.corpus.read_progress import Line, Pace, Piece, text_bytes, watched
from adapt.corpus.streaming import Online, sample_heldout
from adapt.corpus.token_shards import Cut
from adapt.model.locate import Pretrained
from adapt.ray.runtime import data_settings, telling_stalls
from adapt.runner.digest import Digests
from adapt.support.errors import DataError, StallError
from adapt.support.heartbeat import Steady
from adapt.support.stall_watch import STALLS, Stall
from tests.pseudo_terminal import screens, sent_to_terminal
from tests.samples import sentences

TEXTS = sentences(600, seed=1)


def corpus_in(folder: Path, files: int = 1, suffix: str = "jsonl") -> tuple[Manifest, CorpusConfig]:
    opened = gzip.open if suffix.endswith("gz") else open
    for number in range(files):
        with opened(folder / f"{number}.{suffix}", "wt") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS[number::files])
    corpus = CorpusConfig(paths=str(folder / f"*.{suffix}"), heldout_fraction=0.1)
    return build_manifest(corpus, Digests(folder / "digests.json")), corpus


def shares(pace: Pace, *pieces: tuple[int, int, bool]) -> list[tuple[int, int]]:
    """Adds pieces to a `Pace`, and returns its `done` and `total` after each piece.

    A piece is given as (item, bytes of text, whether it is the last of the item).
    """
    found = []
    for item, size, is_last in pieces:
        pace.add(Piece(item, 1, size, is_last))
        found.append((pace.done, pace.total))
    return found


# --- estimated share


def test_a_byte_of_a_plain_file_counts_as_a_byte_of_text() -> None:
    pieces = (0, 30, False), (0, 30, False), (0, 20, True), (1, 40, False), (1, 40, True)
    assert shares(Pace([100, 100], True), *pieces) == [(30, 200), (60, 200), (100, 200), (140, 200), (200, 200)]


def test_only_finished_compressed_files_count() -> None:
    pieces = (0, 150, False), (0, 150, True), (1, 150, False), (1, 150, True)
    assert shares(Pace([100, 100], False), *pieces) == [(0, 200), (100, 200), (100, 200), (200, 200)]


def test_an_item_is_complete_only_after_its_last_piece() -> None:
    assert shares(Pace([100], True), (0, 500, False), (0, 500, True)) == [(99, 100), (100, 100)]
    assert shares(Pace([0, 0], False), (0, 0, True), (1, 0, True)) == [(0, 0), (0, 0)]


def test_progress_never_decreases() -> None:
    assert shares(Pace([100, 100], True), (1, 90, False), (0, 900, True)) == [(90, 200), (190, 200)]


def test_items_in_any_order_sum_up_to_the_total() -> None:
    pace = Pace([10, 20, 30], True)
    shares(pace, (2, 15, False), (0, 10, True), (2, 15, True), (1, 20, True))
    assert (pace.done, pace.documents, pace.text_bytes) == (60, 4, 60)


@pytest.mark.parametrize(("suffix", "is_plain"), [("jsonl", True), ("jsonl.gz", False)])
def test_sizes_of_items_of_files_are_bytes(
    suffix: str, is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapt.corpus.files.manifest.ITEM_BYTES", 5000)
    manifest, corpus = corpus_in(tmp_path, 2, suffix)
    items = numbered_items(manifest, corpus)
    pace = Pace.of(items, manifest, corpus)
    assert sum(pace.sizes) == sum(file.stat().st_size for file in tmp_path.glob(f"*.{suffix}"))
    assert (len(pace.sizes) > 2) is is_plain
    assert pace.is_plain is is_plain


def test_sizes_of_items_of_docstrings_are_modules() -> None:
    corpus = CorpusConfig(source="docstrings")
    items = [{"item": n, "sources": json.dumps([{"path": "a.py"}] * n)} for n in (1, 2)]
    pace = Pace.of(items, Manifest([]), corpus)
    assert (pace.sizes, pace.is_plain) == ([1, 2], False)


def test_text_bytes_are_those_of_utf8() -> None:
    texts = ["ascii", "größer", "漢字"]
    chunks = pa.table({"texts": pa.array([["other"], texts, []], pa.large_list(pa.large_string()))})
    assert text_bytes(chunks.slice(1)) == len("".join(texts).encode())
    assert text_bytes(chunks.slice(2)) == 0


# --- text of the progress lines


class Shown:
    """A display that keeps the parts of the last progress line."""

    parts: dict[str, str]

    def update(self, parts: Any, done: int, total: int) -> None:
        self.parts = dict(parts)

    def close(self) -> None: ...


def said(monkeypatch: pytest.MonkeyPatch, *reports: tuple[float, int, int, int, int]) -> list[str]:
    """Returns the progress line after each report. A report is (time [s], documents, bytes of text, done, total)."""
    times = iter(report[0] for report in reports)
    monkeypatch.setattr("adapt.corpus.read_progress.time.monotonic", lambda: next(times))
    shown = Shown()
    line, lines = Line("prepare", shown), []
    for _, *report in reports:
        line.update(*report)
        lines.append("  ".join(shown.parts.values()))
    return lines


def test_a_line_shows_documents_share_speed_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = (7, 1000, 2_000_000, 40, 1000), (8, 5000, 6_000_000, 120, 1000), (17, 12_345, 43_000_000, 340, 1000)
    assert said(monkeypatch, *reports, (27, 30_000, 90_000_000, 1000, 1000)) == [
        "prepare: 1,000 documents  4%",
        "prepare: 5,000 documents  12%",
        "prepare: 12,345 documents  34%  4.1 MB/s  ETA 22 s",
        "prepare: 30,000 documents  100%  4.4 MB/s  done",
    ]


def test_no_remaining_time_is_shown_without_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    said_of = said(monkeypatch, (1, 5, 0, 0, 0), (3, 10, 200_000, 0, 0))
    assert said_of == ["prepare: 5 documents", "prepare: 10 documents  0.1 MB/s"]


def test_done_is_shown_only_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said_of = said(monkeypatch, (1, 5, 0, 0, 1000), (4, 5, 0, 0, 1000), (9, 5, 0, 999, 1000), (9, 5, 0, 1000, 1000))
    assert said_of == [
        "prepare: 5 documents  0%",
        "prepare: 5 documents  0%  0.0 MB/s",
        "prepare: 5 documents  99%  0.0 MB/s  ETA 0.0 s",
        "prepare: 5 documents  100%  0.0 MB/s  done",
    ]


PROGRAM = """
import time
from pathlib import Path
from adapt.corpus import read_progress
from adapt.corpus.read_progress import Pace, Piece, watched
read_progress.SETTLED_S = 0.1
def rows():
    for number in range(4):
        time.sleep(0.15)
        yield {"number": number}
piece = lambda row: Piece(row["number"], 250, 100, True)
watched(rows(), Pace([100] * 4, True), "prepare", piece, Path("none"))
print("result")
"""


def test_a_terminal_shows_one_line_with_a_bar() -> None:
    seen = screens(sent_to_terminal(PROGRAM))
    lines = [screen[0] for screen in seen]
    assert any(text == "prepare: starting to read" for text in lines)
    assert any(re.match("prepare: 500 documents [━╺╸]+  50%  0.0 MB/s  ETA .+ s$", text) for text in lines)
    assert [text for text in seen[-1] if text] == [
        f"prepare: 1,000 documents {'━' * 24}  100%  0.0 MB/s  done",
        "result",
    ]


# --- the stages


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_progress, "PERIOD_S", 0.0)
    monkeypatch.setattr("adapt.corpus.prepare_corpus.CHUNK_CHARACTERS", 5000)


def lines_of(stage: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[int, int]]:
    """Returns the number of documents and the share [%] of each progress line of a stage."""
    lines = [text for text in capsys.readouterr().err.splitlines() if text.startswith(f"{stage}: ")]
    found = [re.match(rf"{stage}: ([\d,]+) documents  (\d+)%(?:$|  [\d.]+ MB/s|  done)", text) for text in lines]
    assert all(found), lines
    assert lines[-1].endswith("  done")
    return [(int(each[1].replace(",", "")), int(each[2])) for each in found if each]


@pytest.mark.usefixtures("ray_cluster", "_often")
def test_preparing_shows_its_progress(tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, corpus = corpus_in(tmp_path)
    (out := tmp_path / "out").mkdir()
    metrics = prepare(manifest, corpus, Pretrained(tiny_bert, tiny_bert), out)
    lines = lines_of("prepare", capsys)
    assert len(lines) > 3
    assert lines == sorted(lines)
    assert lines[0][1] < 50
    assert lines[-1] == (metrics["train_documents"] + metrics["heldout_documents"], 100)


@pytest.mark.usefixtures("ray_cluster", "_often")
def test_deduplicating_shows_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapt.corpus.deduplication.CHUNK_CHARACTERS", 5000)
    manifest, corpus = corpus_in(tmp_path)
    (out := tmp_path / "out").mkdir()
    metrics = deduplicate([("", manifest, corpus)], DuplicateRule(near=False), out)
    lines = lines_of("dedup", capsys)
    assert len(lines) > 3
    assert lines[-1] == (metrics["documents"], 100)


@pytest.mark.usefixtures("_often")
def test_sampling_a_streamed_corpus_shows_its_progress(
    tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, corpus = corpus_in(tmp_path, files=4)
    online = Online.of(manifest, corpus, Pretrained(tiny_bert, tiny_bert), PLAIN, Cut(32, 4, 0), tmp_path)
    (out := tmp_path / "out").mkdir()
    sample_heldout(online, out)
    lines = lines_of("prepare", capsys)
    assert [share for _, share in lines] == [0, 25, 50, 75, 100]
    assert lines[-1][0] == len(TEXTS)


def stops_once(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a batch twice. The first process that gets row 1 sends SIGSTOP to itself."""
    yield batch
    if batch["number"][0] == 1 and not (seen := Path(batch["folder"][0], "seen")).exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    yield batch


@pytest.mark.usefixtures("ray_cluster")
def test_a_task_that_is_stopped_is_named_ended_and_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [{"number": number, "folder": str(tmp_path)} for number in range(3)]
    with data_settings():
        steady = Steady(stops_once, "copying", tmp_path, stall_s=1.0)
        rows = ray.data.from_items(items, override_num_blocks=3).map_batches(steady, batch_size=1, batch_format="numpy")
        pace = Pace([1] * 3, False)
        seen = watched(rows.iter_rows(), pace, "prepare", lambda row: Piece(row["number"], 1, 1, True), tmp_path)
    assert [row["number"] for row in seen] == [0, 0, 1, 1, 2, 2]
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "a task on" in line)
    assert re.search(r"prepare: a task on .* made no progress for \d s in copying: a signal has stopped it", told)
    assert told.endswith("; Ray runs the task again")


def dies(folder: Path) -> None:
    """Imitates a dataset that fails after a task has stalled too often."""
    stall = Stall("a task", "node", 7, "reading", -1, 3, 60.0, True, "S", False, "", 0)
    (folder / STALLS / "a").mkdir(parents=True)
    (folder / STALLS / "a" / "task.json").write_text(json.dumps(asdict(stall)))
    raise RuntimeError("the worker died")


def test_an_error_after_a_stall_names_the_stall(tmp_path: Path) -> None:
    """Ray repeats a task a few times, and then fails with an error that does not say why the process ended."""
    named = pytest.raises(StallError, match=r"a task on node .* no progress for 60 s in reading")
    with named, telling_stalls("dedup", tmp_path):
        dies(tmp_path)
    with pytest.raises(DataError), telling_stalls("dedup", tmp_path):
        raise DataError("a file is broken", "mend it")
