"""Tests that a selection by vectors gives the same result if it is killed while embedding and then started again."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapt.select import TEXTS_FILE
from tests import drive
from tests.embed.toys import topical
from tests.samples import with_labels, write

ITEMS = 6


@pytest.fixture
def jobs() -> Iterator[drive.Jobs]:
    yield from drive.jobs()


@pytest.mark.slow
def test_a_killed_selection_embeds_nothing_twice_and_gives_the_same_result(
    tmp_path: Path, tiny_bert: Path, jobs: drive.Jobs
) -> None:
    for number in range(ITEMS):
        texts = topical(600, seed=number, length=60)[0]
        write(tmp_path / f"pool-{number}.jsonl", [{"text": text} for text in texts])
    splits = {split: write(tmp_path / f"{split}.jsonl", with_labels(topical(8, n)[0])) for n, split in SPLITS.items()}
    arguments = [
        *(f"--task.{split}={file}" for split, file in splits.items()),
        *(f"--model.path={tiny_bert}", "--task.name=toy", f"--select.pool_paths={tmp_path}/pool-*.jsonl"),
        *("--select.kind=knn", "--select.embedder=transformer", "--select.per_example=3"),
        *("--training.sequence_length=64", "--evaluation.sequence_length=64", "--select.measure_loss=false"),
        *("--resources.workers=1",),
    ]
    first = jobs.start(tmp_path, arguments, "select.py")
    first.until(lambda: len(_vectors(first.root)) > 1)
    first.interrupt(signal.SIGKILL)
    first.end()
    assert not list(first.root.glob("embed/*/stage.json"))
    written = {file: file.stat().st_mtime_ns for file in _vectors(first.root)}
    assert 1 < len(written) < ITEMS
    again = jobs.start(tmp_path, arguments, "select.py")
    result = again.result()
    assert {file: file.stat().st_mtime_ns for file in written} == written
    lines = (Path(result["path"]) / TEXTS_FILE).read_text().splitlines()
    assert 3 <= len(lines) <= 24
    assert all(0.0 < json.loads(line)["score"] <= 1.001 for line in lines)
    third = jobs.start(tmp_path, arguments, "select.py")
    assert third.result() == result
    assert "embed: " not in third.err


SPLITS = {11: "train", 12: "dev", 13: "test"}


def _vectors(root: Path) -> list[Path]:
    return sorted(root.glob("embed/*pool*/vectors-*.parquet"))
