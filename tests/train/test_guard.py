"""Rank 0 waits until that of an earlier run has gone, and the user gets to know."""

import os
import threading
from pathlib import Path

import pytest

from adapt.runner.lock import locked
from adapt.train.guard import only_run
from adapt.train.job import METRICS_FILE, NOTICE_FILE
from adapt.train.tracking.watch import following


def live(folder: Path, rank: int, begun: threading.Event) -> threading.Thread:
    """A rank that does nothing, in a thread."""

    def run() -> None:
        with only_run(folder, rank):
            begun.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_the_user_sees_that_rank_0_waits_and_for_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = threading.Event()
    with following(tmp_path / METRICS_FILE, tmp_path / NOTICE_FILE):
        with locked(tmp_path / "training"):
            rank = live(tmp_path, 0, began)
            assert not began.wait(1)
        rank.join(10)
    assert began.is_set()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"train: waiting for workers of an earlier run that still train in {tmp_path}")
    assert f"process {os.getpid()} on " in said


def test_nothing_is_said_where_nobody_waits(tmp_path: Path) -> None:
    with locked(tmp_path / "training"):
        began = threading.Event()
        live(tmp_path, 1, began).join(10)  # other ranks do not look
        assert began.is_set()
    began = threading.Event()
    live(tmp_path, 0, began).join(10)
    assert began.is_set()
    assert not (tmp_path / NOTICE_FILE).exists()
