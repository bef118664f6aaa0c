"""Tests the parts of the chaos harness that need no chain: the failing store, damage to files, and the table."""

import subprocess
import sys
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.__main__ import main
from tests.chaos.failing_store import VARIABLE
from tests.chaos.faults import FAULTS
from tests.chaos.outcome import Outcome, Results, table
from tests.chaos.storage import LocalRoot, identity, models

ROOT = Path(__file__).parents[2]
WRITER = """
import os, sys
from pathlib import Path
import tests.chaos.failing_store
folder, control = Path(sys.argv[1]), Path(sys.argv[2])
def writes():
    failed = ""
    for number in range(6):
        try:
            (folder / str(number)).write_text("x")
            failed += "."
        except OSError as error:
            failed += "x" if error.filename == str(folder / str(number)) else "?"
    return failed
print(writes())
control.write_text(sys.argv[1])
__import__("time").sleep(0.1)
print(writes())
(folder / "0").read_text()
Path(sys.argv[3]).write_text("elsewhere")
control.unlink()
__import__("time").sleep(0.1)
print(writes())
"""


def test_every_third_write_below_the_root_fails_while_the_file_exists(tmp_path: Path) -> None:
    root, control = tmp_path / "root", tmp_path / "control"
    root.mkdir()
    command = [sys.executable, "-c", WRITER, str(root), str(control), str(tmp_path / "other")]
    done = subprocess.run(command, cwd=ROOT, env={VARIABLE: str(control)}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["......", "..x..x", "......"]


def test_a_flip_changes_one_bit_of_one_file_and_is_repeatable(tmp_path: Path) -> None:
    def flipped(name: str) -> tuple[str | None, list[bytes]]:
        root = LocalRoot(tmp_path / name)
        files = [root.folder / "export" / "a-0" / f"{number}.safetensors" for number in range(3)]
        files[0].parent.mkdir(parents=True)
        for file in files:
            file.write_bytes(bytes(100))
        return root.flip("export", "*.safetensors", Random(1)), [file.read_bytes() for file in files]

    name, contents = flipped("one")
    assert sum(byte.bit_count() for content in contents for byte in content) == 1
    assert any(contents[int(str(name)[0])])
    assert flipped("other") == (name, contents)
    assert LocalRoot(tmp_path / "none").flip("export", "*", Random(1)) is None


def test_models_are_those_of_exports_and_a_repeated_stage_has_another_identity() -> None:
    record = {
        "stage": "export",
        "digests": {"model.safetensors": "1", "config.json": "2"},
        "cost": {},
        "started_at": "a",
    }
    train = {**record, "stage": "train"}
    assert models({"export/m": record, "train/m": train}) == {"export/m/model.safetensors": "1"}
    assert identity(record) == identity(dict(record))
    assert identity(record) != identity({**record, "started_at": "b"})


def test_the_table_counts_what_went_wrong_and_names_it() -> None:
    about = {"node": "kill -9 of a node", "clock": "clock jump", "race": "race"}
    outcomes = [
        Outcome("node", 0, "train", recovered_s=3.0, redone_steps=2),
        Outcome("node", 1, "export", recovered_s=9.0, redone_steps=4, wrong=["the models differ"], commands=2),
        Outcome("clock", 0, left_out="libfaketime is not installed"),
    ]
    text = table(outcomes, about, date(2026, 1, 2))
    assert text.startswith("Faults, 2026-01-02: 1 of 2 chains ended as undisturbed.")
    assert "|kill -9 of a node|2|1|6 (9)|3 (4)|2|" in text
    assert "|clock jump|0|libfaketime is not installed||||" in text
    assert "|race|0|not tried||||" in text
    assert text.endswith("- node, moment 1 (export): the models differ")


def test_results_continue_after_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    Results(file).add(Outcome("node", 0))
    with file.open("a") as opened:
        opened.write('{"fault": "node", "mom')
    again = Results(file)
    assert again.has("node", 0)
    assert not again.has("node", 1)
    again.add(Outcome("node", 1))
    assert Results(file).has("node", 1)


def test_a_later_run_adds_to_the_file_and_tries_what_was_left_out(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    first = Results(file)
    first.add(Outcome("node", 0, day="2026-01-02"))
    first.add(Outcome("disk", 0, left_out="no file system can be mounted here", day="2026-01-02"))
    later = Results(file)
    assert later.has("node", 0)
    assert not later.has("disk", 0)
    later.add(Outcome("disk", 0, day="2026-01-05"))
    later.add(Outcome("node", 1, day="2026-01-05"))
    text = table(Results(file).outcomes, {"node": "kill -9 of a node", "disk": "full disk"}, date(2026, 1, 9))
    assert text.startswith("Faults, 2026-01-02 to 2026-01-05: 3 of 3 chains ended as undisturbed.")
    assert "|kill -9 of a node|2|2|" in text
    assert "|full disk|1|1|" in text


def test_with_no_time_only_the_table_of_the_file_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    Results(file).add(Outcome("disk", 3, day="2026-01-02"))
    content = file.read_text()
    monkeypatch.setattr(chaos, "Trials", lambda *_: None)
    monkeypatch.setattr(chaos.signal, "signal", lambda *_: None)
    arguments = ["chaos", "--minutes", "0", "--moments", "20", "--faults", "disk,race", "--file", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 0
    said = capsys.readouterr().out
    assert said.count("Faults, 2026-01-02: 1 of 1 chains") == 1
    assert "|full disk|1|1|" in said
    assert "|two chains race|0|not tried|" in said
    assert file.read_text() == content


def test_the_page_has_the_table_of_the_recorded_faults() -> None:
    outcomes = Results(ROOT / "benchmarks" / "faults.jsonl").outcomes
    page = (ROOT / "docs" / "develop" / "benchmarks.md").read_text()
    shown = page.partition("<!-- faults: begin -->")[2].partition("<!-- faults: end -->")[0].strip()
    assert shown == table(outcomes, {name: fault.about for name, fault in FAULTS.items()}, date.today())


@pytest.mark.parametrize("option", ["--moments=x", "--faults=flood"])
def test_wrong_options_are_refused(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", option])
    with pytest.raises(SystemExit, match="2"):
        main()


def test_all_kinds_of_the_issue_are_there() -> None:
    assert len(FAULTS) == 17
    assert all(fault.happen.__doc__ for fault in FAULTS.values())


@pytest.mark.parametrize(
    ("options", "left_out", "wrong", "code"),
    [
        ([], "no file system can be mounted here", [], 0),
        (["--all"], "no file system can be mounted here", [], 1),
        (["--minutes", "0"], "", [], 0),
        (["--minutes", "0", "--all"], "", [], 1),
        (["--all"], "", [], 0),
        ([], "", ["a file is lost"], 1),
    ],
)
def test_with_all_a_fault_that_was_not_tried_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, options: list[str], left_out: str, wrong: list[str], code: int
) -> None:
    class Trials:
        def __init__(self, *_: Any) -> None:
            pass

        def outcome_of(self, name: str, moment: int) -> Outcome:
            return Outcome(name, moment, wrong=wrong, left_out=left_out)

    monkeypatch.setattr(chaos, "Trials", Trials)
    monkeypatch.setattr(chaos.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["chaos", "--faults", "disk", *options])
    assert main() == code
