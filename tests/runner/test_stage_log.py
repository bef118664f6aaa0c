"""What a stage said stays, whether it ended well or not, and structured lines say whose they are."""

import json
from pathlib import Path

import pytest

from adapt import console
from adapt.console import log, take_log_format, telling
from adapt.errors import ConfigError, DataError
from adapt.runner.stage_log import failure_of, log_of, logged, logged_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "train" / "cs-0123456789abcdef"


def test_what_is_said_in_a_stage_is_kept_beside_its_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log("before")
    with logged(folder):
        log("step 1 of https://me:word@host/x")
    log("after")
    assert log_of(folder) == folder.parents[1] / "logs" / "train" / f"{folder.name}.jsonl"
    (line,) = logged_lines(folder)
    assert line["message"] == "step 1 of https://host/x"
    assert line["stage"] == "train/cs-0123456789abcdef"
    assert capsys.readouterr().err == "before\nstep 1 of https://host/x\nafter\n"


def test_a_failure_is_known_until_the_stage_begins_again(folder: Path) -> None:
    assert failure_of(folder) is None
    with pytest.raises(DataError), logged(folder):
        raise DataError("the corpus is empty", "give it text")
    assert failure_of(folder) == "the corpus is empty"
    with logged(folder):
        log("train: beginning")
        assert failure_of(folder) is None


def test_half_a_line_is_passed_over(folder: Path) -> None:
    with logged(folder):
        log("whole")
    with log_of(folder).open("a") as file:
        file.write('{"message": "ha')
    assert [line["message"] for line in logged_lines(folder)] == ["whole"]


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    with logged(tmp_path / "train" / "a-1"):
        log("goes on")


def test_lines_of_json_say_run_stage_and_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(console.FORMAT, "json")
    monkeypatch.setenv(console.RUN, "abc")
    with telling(stage="train/x", rank=3):
        log("hello")
    line = json.loads(capsys.readouterr().err)
    assert {name: line[name] for name in ("run", "stage", "rank", "message")} == {
        "run": "abc",
        "stage": "train/x",
        "rank": 3,
        "message": "hello",
    }
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize("given", [["--log_format", "json"], ["--log_format=json"]])
def test_the_format_is_taken_off_the_command_line(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.setenv(console.FORMAT, "plain")
    monkeypatch.setenv(console.RUN, "abc")
    monkeypatch.setattr(console.sys, "argv", ["jobs/dapt.py", "--config", "a.yaml", *given, "--seed", "1"])
    take_log_format()
    assert console.sys.argv == ["jobs/dapt.py", "--config", "a.yaml", "--seed", "1"]
    assert console.logs_json()


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(console.RUN, "abc")
    monkeypatch.setattr(console.sys, "argv", ["jobs/dapt.py", "--log_format", "xml"])
    with pytest.raises(ConfigError, match="plain or json, not xml"):
        take_log_format()
