"""Tests that the status says why a stage waits, what failed, and how much time and money the chain has spent."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapt.runner import Outcome, Store, ensure
from adapt.runner.lock import locked
from adapt.runner.store import log_of, logged
from adapt.show.progress.goals import TrainingAhead, reasons_of, show_logs, spent, spent_lines, why_waiting
from adapt.support.errors import ConfigError, DataError
from tests.runner.toys import Toy, ToyResult


def costly(folder: Path, done: object) -> Outcome[ToyResult]:
    return Outcome(ToyResult(), {"device_hours": 0.5, "cost": 1.25})


@dataclass(frozen=True)
class Goal:
    name: str
    label: str
    stage: Toy


SOURCE = Toy("corpus", "source", costly)
LEFT = Toy("cs", "left", costly, source=SOURCE)
TOP = Toy("all", "top", costly, left=LEFT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def place(store: Store, stage: Toy) -> Path:
    return store.folder(stage.kind, stage.name, stage.key)


def test_a_stage_waits_for_the_first_that_is_missing(store: Store) -> None:
    assert why_waiting(TOP, store) == "waits for source corpus, which has not started"
    with locked(place(store, SOURCE)):
        assert why_waiting(TOP, store) == "waits for source corpus, which is running"
    ensure(SOURCE, store)
    assert why_waiting(TOP, store) == "waits for left cs, which has not started"
    ensure(TOP, store)
    assert why_waiting(TOP, store) == ""


def test_what_failed_is_told_with_its_reason(store: Store) -> None:
    ensure(SOURCE, store)
    with pytest.raises(DataError), logged(place(store, LEFT)):
        raise DataError("it is empty")
    assert why_waiting(TOP, store) == "waits for left cs, which failed: it is empty"
    assert why_waiting(LEFT, store) == "failed: it is empty"


def test_goals_with_one_reason_share_a_line(store: Store) -> None:
    found = reasons_of([Goal("a", "a[1]", TOP), Goal("b", "b", LEFT)], store)
    assert found == [("a[1] and 1 more", "waits for source corpus, which has not started")]


def test_what_is_spent_is_counted_once_a_stage(store: Store) -> None:
    ensure(LEFT, store)
    taken = spent([TOP, LEFT], store)
    assert (taken["device_hours"], taken["cost"]) == (1.0, 2.5)
    lines = spent_lines(taken, [TrainingAhead("a", device_hours=2.0), TrainingAhead("b")])
    assert lines[0].startswith("Finished stages took 1 device-hours (cost 2.50) and ")
    assert lines[1] == "2 trainings will take about 2 device-hours; the time of 1 of them is not known."


def test_logs_are_found_by_label_entry_kind_and_folder(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    ensure(TOP, store)
    capsys.readouterr()
    goals = [Goal("tuned", "tuned[x]", TOP), Goal("base", "base", LEFT)]
    counts = {wanted: show_logs(goals, store, wanted) for wanted in ("tuned", "tuned[x]", "base", None)}
    assert counts == {"tuned": 6, "tuned[x]": 6, "base": 4, None: 6}
    assert show_logs(goals, store, "left") == show_logs(goals, store, f"left/{place(store, LEFT).name}") == 2
    with pytest.raises(ConfigError, match="no stage is called tuned\\[y\\]") as caught:
        show_logs(goals, store, "tuned[y]")
    assert "tuned[x]" in caught.value.fix


def test_logs_show_control_characters_as_codes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    ensure(LEFT, store)
    with log_of(place(store, LEFT)).open("a") as file:
        file.write(json.dumps({"message": "a \x1b]0;title\x07 b"}) + "\n")
    show_logs([Goal("base", "base", LEFT)], store, None)
    assert "a \\x1b]0;title\\x07 b" in capsys.readouterr().err
