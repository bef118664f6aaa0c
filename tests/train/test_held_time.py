"""Tests the accounting of held device time: productive steps, and losses by cause, over restarts and kills."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapt.train import held_time
from adapt.train.held_time import HELD_FILE, HeldLog, HeldTime, add_seconds, holding, spent_on


def write(folder: Path, *lines: tuple[float, str, dict[str, Any]], seen: float | None = None) -> None:
    """Writes a log with these times, kinds and values. Its mtime, which the driver renews, is set to `seen`."""
    text = "".join(json.dumps({"time": at, "kind": kind, **values}) + "\n" for at, kind, values in lines)
    (folder / HELD_FILE).write_text(text)
    if seen:
        os.utime(folder / HELD_FILE, (seen, seen))


def begin(at: float, waits: bool = False) -> tuple[float, str, dict[str, Any]]:
    return at, "begin", {"devices": 2, "waits": waits}


def ranks(at: float, step: int, devices: int = 2, since: float = 0) -> tuple[float, str, dict[str, Any]]:
    return at, "ranks", {"step": step, "devices": devices, "since": since}


def steps(at: float, step: int, useful: float, **seconds: float) -> tuple[float, str, dict[str, Any]]:
    causes = {cause.replace("_", " "): value for cause, value in seconds.items()}
    return at, "spent", {"step": step, "seconds": {"steps": useful, **causes}}


def end(at: float, failed: bool = False) -> tuple[float, str, dict[str, Any]]:
    return at, "end", {"failed": failed}


def read(folder: Path) -> tuple[float, float, dict[str, float]]:
    """Returns the held and productive time, and the losses above zero."""
    found = HeldTime.load(folder)
    assert found
    assert found.held == pytest.approx(found.productive + sum(found.lost.values()))
    return found.held, found.productive, {cause: pytest.approx(value) for cause, value in found.lost.items() if value}


def test_a_run_without_failures_has_start_steps_waits_and_an_end(tmp_path: Path) -> None:
    write(
        tmp_path,
        begin(100),
        ranks(110, 0),
        steps(130, 10, 15, data_wait=2, checkpoint=1, evaluation=1.5),
        steps(140, 15, 10),
        end(143),
    )
    held, productive, lost = read(tmp_path)
    assert (held, productive) == (2 * 43, 2 * 25)
    # "other" contains the export, which takes 3 seconds, and half a second per device that was not attributed
    assert lost == {"start": 20, "data wait": 4, "checkpoint": 2, "evaluation": 3, "other": 7}
    assert HeldTime.load(tmp_path).goodput == pytest.approx(50 / 86)


def test_steps_after_the_last_checkpoint_are_redone(tmp_path: Path) -> None:
    """The checkpoint contains 10 of the 16 steps. The restart loses the time from second 126 to second 140."""
    write(
        tmp_path, begin(100), ranks(110, 0), steps(120, 10, 10), steps(126, 16, 6), ranks(140, 10), steps(150, 20, 10)
    )
    os.utime(tmp_path / HELD_FILE, (150, 150))
    assert read(tmp_path) == (2 * 50, 2 * 20, {"start": 20, "redone": 12, "restart": 28})


def test_a_stretch_across_the_checkpoint_is_divided_by_steps(tmp_path: Path) -> None:
    write(tmp_path, begin(100), ranks(100, 0), steps(120, 20, 20), ranks(120, 5), end(120))
    assert read(tmp_path) == (40, 10, {"redone": 30})


def test_an_attempt_that_was_killed_ends_with_the_last_sign_of_its_driver(tmp_path: Path) -> None:
    """The hour until the next attempt is not held time. The restart loses the time after the last line of rank 0."""
    write(tmp_path, begin(100), ranks(110, 0), steps(120, 10, 10), seen=124)
    assert read(tmp_path) == (48, 20, {"start": 20, "other": 8})
    with holding(tmp_path, 2, waits=False):
        pass
    found = HeldTime.load(tmp_path)
    assert found
    assert (found.productive, found.lost["start"]) == (20, 20)
    assert found.lost["restart"] == pytest.approx(8, abs=1)  # the second attempt holds devices for some milliseconds


def test_each_group_counts_with_its_own_number_of_devices(tmp_path: Path) -> None:
    write(
        tmp_path,
        begin(100),
        ranks(110, 0),
        steps(120, 10, 10),
        ranks(125, 10, devices=1),
        steps(135, 15, 10),
        end(135),
    )
    assert read(tmp_path) == (2 * 20 + 15, 20 + 10, {"start": 20, "restart": 5})


def test_time_in_which_others_use_the_devices_is_not_held(tmp_path: Path) -> None:
    write(tmp_path, begin(100, waits=True), ranks(200, 0, since=190), steps(210, 10, 10), end(210))
    assert read(tmp_path) == (40, 20, {"start": 20})


def test_a_line_that_a_crash_cut_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, begin(100), ranks(110, 0), steps(120, 10, 10), end(120))
    with (tmp_path / HELD_FILE).open("a") as file:
        file.write('{"time": 13')
    assert read(tmp_path) == (40, 20, {"start": 20})


def test_there_is_no_time_without_a_file(tmp_path: Path) -> None:
    assert HeldTime.load(tmp_path) is None


def test_times_of_stages_add_up(tmp_path: Path) -> None:
    write(tmp_path, begin(100), ranks(110, 0), steps(120, 10, 9, data_wait=1), end(120))
    found = HeldTime.load(tmp_path)
    assert found
    both = found + found
    assert (both.held, both.productive, both.lost["start"]) == (80, 36, 40)
    assert both.losses() == "start 50.0%, data wait 5.0%"


def test_what_rank_0_writes_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a checkpoint within an evaluation is not counted twice."""
    clock = SimpleNamespace(now=0.0, time=time.time, monotonic=lambda: clock.now, perf_counter=lambda: clock.now)
    monkeypatch.setattr(held_time, "time", clock)
    with holding(tmp_path, 3, waits=False):
        log = HeldLog(tmp_path, devices=3)
        log.begin(4)
        add_seconds("steps", 7.0)
        with spent_on("evaluation"):
            clock.now += 0.25
            with spent_on("checkpoint"):
                clock.now += 0.5
        log.step(4)  # nothing is written, because the last line is too recent
        clock.now += 1
        log.step(5)
        assert len((tmp_path / HELD_FILE).read_text().splitlines()) == 3
    found = HeldTime.load(tmp_path)
    assert found
    assert (found.productive, found.lost["checkpoint"], found.lost["evaluation"]) == (21, 1.5, 0.75)


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = HeldLog()
    log.begin(0)
    log.step(1)
    log.record(1)
    assert not [*tmp_path.iterdir()]


def test_lines_of_a_long_run_get_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of ten days with a step every 10 seconds writes only 500 to 3,000 lines."""
    now = [0.0]
    monkeypatch.setattr(held_time, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0]))
    lines: list[str] = []
    monkeypatch.setattr(held_time, "add_held_line", lambda *_, **__: lines.append(""))
    log = HeldLog(tmp_path)
    log.begin(0)
    for step in range(86400):
        now[0] += 10.0
        log.step(step + 1)
    assert 500 < len(lines) < 3000
