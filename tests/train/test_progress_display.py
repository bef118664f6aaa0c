"""Tests the driver's display of a run: plain lines in a log, and one live line on a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapt.terminal.live import line
from adapt.train.metric_trackers import LEAST, AppendedLines, describe, following
from tests.pseudo_terminal import drawn, screens, sent_to_terminal


def report(step: int, **changes: Any) -> dict[str, Any]:
    values = {"step": step, "steps": 600, "loss": 2.5, "learning_rate": 5e-4, "tokens_per_s": 12345.6}
    return values | {"data_wait_share": 0.0012, "eta_s": (600 - step) / 5, "gradient_norm": 1.0} | changes


def lines(*steps: int, **changes: Any) -> str:
    return "".join(json.dumps(report(step, **changes)) + "\n" for step in steps)


def append(file: Path, text: str) -> None:
    with file.open("a") as end:
        end.write(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


# --- reading the file of reports


def new(reports: AppendedLines) -> list[int]:
    return [metrics["step"] for metrics in reports.new()]


def test_reading_starts_at_the_present_end(file: Path) -> None:
    file.write_text(lines(1, 2))
    reports = AppendedLines(file)
    assert new(reports) == []
    append(file, lines(3, 4))
    assert new(reports) == [3, 4]
    assert new(reports) == []


def test_a_file_may_appear_late_and_disappear(file: Path) -> None:
    reports = AppendedLines(file)
    assert new(reports) == []
    file.write_text(lines(1))
    assert new(reports) == [1]
    file.unlink()
    assert new(reports) == []
    file.write_text("")
    assert new(reports) == []
    append(file, lines(1))
    assert new(reports) == [1]


def test_an_incomplete_line_is_read_once_it_is_complete(file: Path) -> None:
    reports = AppendedLines(file)
    text = lines(1, 2)
    file.write_text(text[:-30])
    assert new(reports) == [1]
    assert new(reports) == []
    append(file, text[-30:])
    assert new(reports) == [2]


def test_a_resumed_run_replaces_the_file(file: Path) -> None:
    reports = AppendedLines(file)
    file.write_text(lines(1, 2, 3, 4) + '{"step": 5, "lo')
    assert new(reports) == [1, 2, 3, 4]
    file.write_text(lines(1, 2))
    assert new(reports) == []
    append(file, lines(3))
    assert new(reports) == [3]


def test_a_replaced_file_that_has_grown_past_our_position_is_read(file: Path) -> None:
    reports = AppendedLines(file)
    file.write_text(lines(1, 2, 3, loss=2.25))
    assert new(reports) == [1, 2, 3]
    file.write_text(lines(1, loss=2.25) + lines(2, 3, 4, 5))
    assert new(reports) in ([4, 5], [5])
    append(file, lines(6))
    assert new(reports) == [6]


# --- plain lines


def test_a_log_has_one_plain_line_per_report(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(lines(10))
    with following(file, file.with_name("notices")):
        append(file, lines(20))
        append(file, lines(600, tokens_per_s=1.2, data_wait_share=0.5))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 20/600  loss 2.500  lr 5.00e-04  12,346 tokens/s  data wait 0.1%  ETA 1 min 56 s",
        "step 600/600  loss 2.500  lr 5.00e-04  1 tokens/s  data wait 50.0%  done",
    ]


def test_the_last_line_is_shown_after_an_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with following(file, file.with_name("notices")):
            file.write_text(lines(10))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().err.startswith("step 10/600  loss 2.500")


def test_a_workers_notice_is_shown_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notices = file.with_name("notices")
    notices.write_text(json.dumps({"said": "of an earlier run"}) + "\n")
    with following(file, notices):
        append(notices, json.dumps({"said": "waiting for something"}) + "\n")
    assert capsys.readouterr().err.splitlines() == ["train: waiting for something"]


def test_held_out_losses_stay_in_the_line_until_the_next_measurement(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with following(file, file.with_name("notices")):
        measured = {"step": 20, "steps": 30, "eval_domain_loss": 3.25, "eval_general_loss": 2.5}
        file.write_text("".join(json.dumps(line) + "\n" for line in (measured, report(25))))
    first, second = (line for line in capsys.readouterr().err.splitlines() if "step" in line)
    assert first == "step 20/30  held-out 3.250  general 2.500"
    assert "held-out 3.250  general 2.500" in second


def test_the_score_of_a_probe_is_shown_on_the_half_that_decides() -> None:
    figures = {"eval_intent.dev_macro_f1": 0.5, "eval_intent.other_dev_macro_f1": 0.4}
    assert describe({"step": 1, "steps": 2, **figures})["probe"] == "intent.dev_macro_f1 0.500"


def test_utilization_is_shown_where_it_is_known() -> None:
    assert "MFU" not in describe(report(10))
    assert describe(report(10, mfu=0.314))["MFU"] == "MFU 31%"


# --- the live line

PROGRAM = """
import json, sys, time
from pathlib import Path
from adapt.terminal.console import log
from adapt.train.metric_trackers import following
file, reports = Path(sys.argv[1]), json.loads(sys.argv[2])
log("before")
with following(file, file.with_name("notices")), file.open("a", buffering=1) as end:
    for number, report in enumerate(reports):
        end.write(json.dumps(report) + "\\n")
        time.sleep(0.4)  # so that each is drawn
        log(f"message {number}: " + "x" * 60)
log("after")
print("result")
"""


def on_terminal(file: Path, reports: list[dict[str, Any]], **terminal: Any) -> str:
    """Returns the output of a program that shows these reports on a terminal."""
    return sent_to_terminal(PROGRAM, str(file), json.dumps(reports), **terminal)


def test_a_terminal_shows_one_live_line(file: Path) -> None:
    sent = on_terminal(file, [report(10), report(300), report(600, loss=1.5)])
    seen = screens(sent)
    assert ["before", "starting the workers"] in [screen[:2] for screen in seen]
    assert any(screen[1].startswith("step 10/600 ━━━━━━━━━━") for screen in seen if len(screen) > 1)
    assert all(sum(text.startswith("step ") for text in screen) <= 1 for screen in seen)
    message = "x" * 60
    bar = "━" * 20
    assert [text for text in seen[-1] if text] == [
        "before",
        *(f"message {number}: {message}" for number in range(3)),
        f"step 600/600 {bar}  loss 1.500  lr 5.00e-04  12,346 tokens/s  data wait 0.1%  done",
        "after",
        "result",
    ]
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l")  # the cursor is visible again
    assert sent.count("\x1b[2K") < 15  # the line is only redrawn if it changes


def test_a_terminal_shows_no_line_of_a_run_without_reports(file: Path) -> None:
    sent = on_terminal(file, [])
    assert [text for text in screens(sent)[-1] if text] == ["before", "after", "result"]


def test_a_terminal_that_cannot_erase_gets_plain_lines(file: Path) -> None:
    sent = on_terminal(file, [report(10)], term="dumb")
    assert "\x1b" not in sent
    assert "step 10/600  loss 2.500  lr 5.00e-04  12,346 tokens/s  data wait 0.1%  ETA 1 min 58 s\r\n" in sent


BIG = report(12_340, steps=12_500, loss=10.123, tokens_per_s=1_234_567, mfu=1, data_wait_share=1, eta_s=360_000)


@pytest.mark.parametrize("metrics", [report(10, mfu=0.3), BIG], ids=["small", "big"])
def test_the_line_fits_any_width(metrics: dict[str, Any]) -> None:
    shown = {
        width: drawn(line(describe(metrics), metrics["step"], metrics["steps"], LEAST, width))
        for width in range(20, 201)
    }
    assert all(len(text) <= width for width, text in shown.items())
    parts = ["step", "ETA", "loss", "data wait", "tokens/s", "MFU", "lr"]
    kept = [[part for part in parts if part in text] for text in shown.values()]
    # on narrow terminals, the least important parts are left out first
    assert all(found == parts[: len(found)] for found in kept)
    assert [len(found) for found in kept] == sorted(len(found) for found in kept)
    assert kept[0] == ["step"]
    assert kept[-1] == parts
    assert sum(map(shown[200].count, "━╸╺")) == 24
    if metrics is not BIG:
        assert {"loss", "ETA", "tokens/s", "data wait"} <= set(kept[79 - 20])
        assert kept[99 - 20] == parts
