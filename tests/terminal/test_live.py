"""Tests when a progress display prints a plain line, and which of several displays draws the line that is updated."""

import io
import sys
from typing import Any

import pytest

from adapt.terminal.console import log_values
from adapt.terminal.live import display, line, live_table
from tests.pseudo_terminal import drawn, screens, sent_to_terminal


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that advances only when a test sets its time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("adapt.terminal.live.time", clock)
    return clock


def said(clock: Clock, capsys: pytest.CaptureFixture[str], times: list[float], period_s: float = 5) -> list[str]:
    """Returns the plain lines that a display prints for reports at the given times."""
    with display("waiting", (), period_s) as shown:
        for number, clock.now in enumerate(times):
            shown.update({"a": f"report {number}", "b": "rest"}, number, 0)
    return capsys.readouterr().err.splitlines()


def test_a_log_has_one_line_per_period_and_the_last_report(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(clock, capsys, [1, 2, 5, 6, 9.9, 10, 11, 12])
    assert lines == ["report 2  rest", "report 5  rest", "report 7  rest"]


def test_work_shorter_than_a_period_prints_no_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(clock, capsys, [1, 2, 4.9]) == []


def test_no_report_is_printed_twice(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(clock, capsys, [5]) == ["report 0  rest"]
    clock.now = 0
    assert said(clock, capsys, [1, 2], period_s=0) == ["report 0  rest", "report 1  rest"]


def test_a_line_names_its_stage_while_several_stages_run(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with log_values(stage="train/pretrain-mlm-0-e9ad6b64"):
        assert said(clock, capsys, [5]) == ["report 0  rest"]
        clock.now = 0
        with log_values(stage="train/pretrain-rtd-0-28843f14"):
            assert said(clock, capsys, [5]) == ["pretrain-rtd-0: report 0  rest"]


@pytest.mark.parametrize(
    ("console", "bar"),
    [
        ({"color_system": "standard"}, f"{'━' * 12}╺{'━' * 11}"),
        ({"no_color": True, "color_system": "standard"}, f"{'━' * 12}{' ' * 12}"),
        ({"color_system": None}, f"{'━' * 12}{' ' * 12}"),
    ],
)
def test_the_bar_shows_progress_with_and_without_colours(console: dict[str, Any], bar: str) -> None:
    parts = {"documents": "[5] documents", "speed": "1.0 MB/s"}
    assert drawn(line(parts, 1, 2, (), 80), **console) == f"[5] documents {bar}  1.0 MB/s"
    # The total is unknown, so there is no bar.
    assert drawn(line(parts, 0, 0, (), 80), **console) == "[5] documents  1.0 MB/s"


@pytest.mark.parametrize("log_format", ["plain", "json"])
def test_json_lines_are_not_mixed_with_a_live_table(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("DONTSTOP_LOG_FORMAT", log_format)
    with live_table() as redraw:
        assert (redraw is None) == (log_format == "json")


TWO_AT_ONCE = """
import time
from adapt.terminal.console import log_values
from adapt.terminal.live import display
with display("first waits", ()) as first:
    first.update({"what": "first 1"}, 1, 2)
    with display("second waits", ()) as second:
        second.update({"what": "second 1"}, 1, 2)
    time.sleep(0.2)
    first.update({"what": "first 2"}, 2, 2)
with display("third waits", ()) as third:
    third.update({"what": "third 1"}, 1, 1)
"""


def test_only_one_of_two_displays_has_the_live_line() -> None:
    bar = "━" * 24
    seen = [text for text in screens(sent_to_terminal(TWO_AT_ONCE))[-1] if text]
    assert seen == ["second 1", f"first 2 {bar}", f"third 1 {bar}"]


def test_the_terminal_is_free_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def interrupted() -> None:
        with display("waiting", ()) as shown:
            assert type(shown).__name__ == "_LiveLine"
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted()


TABLE = """
from rich.table import Table
from adapt.terminal.console import log
from adapt.terminal.console import log_values
from adapt.terminal.live import live_table
with live_table() as draw:
    for number in range(3):
        table = Table(title=f"{number} trials")
        table.add_column("trial")
        table.add_row(str(number))
        draw(table)
        log(f"trial {number} ended")
log("all is done")
"""


def test_a_table_stays_below_log_lines_and_is_removed_at_the_end() -> None:
    shown = screens(sent_to_terminal(TABLE))
    assert any("trial 0 ended" in screen and any("1 trials" in row for row in screen) for screen in shown)
    left = [row.strip() for row in shown[-1] if row.strip()]
    assert left == [*(f"trial {number} ended" for number in range(3)), "all is done"]


def test_no_table_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with live_table() as draw:
        assert draw is None
    assert capsys.readouterr().err == ""
