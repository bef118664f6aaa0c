"""Tests that a command for a finished job starts nothing, and immediately reports that there is nothing to do."""

import json
import os
from pathlib import Path

import pytest

from adapt.runner.record import load_record, plain_values
from adapt.stage.export_model import Adapted
from tests.jobs.commands import HEAVY, METRICS, Run, finish, last_line
from tests.runner.made import made_up

pytestmark = pytest.mark.heavy


def test_a_run_with_nothing_to_do_reports_and_starts_nothing(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = finish(job, tmp_path, monkeypatch)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("stage.json")}
    ran = run("dapt.py", *job)
    assert ran.code == 0, ran.err
    measured = {name: value for name, value in METRICS.items() if name in vars(made_up(Adapted))}
    record = load_record(export)
    assert record is not None
    assert last_line(ran) == {"stage": "dapt", "path": str(export), "metrics": record.metrics}
    assert record.metrics == plain_values(made_up(Adapted, **measured))
    assert len(measured) == 6
    assert ran.out.count("\n") == 1
    assert str(export) in ran.err
    assert ran.loaded & HEAVY == set()
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("stage.json")} == before


def test_file_digests_are_reused_at_the_next_start(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, tmp_path, monkeypatch)
    assert run("dapt.py", *job).code == 0
    digests = json.loads((tmp_path / "runs" / f".digests-{os.getuid()}.json").read_text())
    assert str(tmp_path / "corpus.jsonl") in digests


def test_a_changed_corpus_is_processed_again(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, tmp_path, monkeypatch)
    (tmp_path / "corpus.jsonl").write_text("")
    assert last_line(run("chain.py", "plan", *job))["metrics"] == {"done": 0, "stages": 6}
