"""What a terminal shows while trials run, and what the folder of the search has for others to show."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from adapt.errors import DataError
from adapt.evaluate.results import Estimate
from adapt.runner import Store
from adapt.show.progress.chain_now import TrialsNow
from adapt.show.terminal import rich_table
from adapt.tuning.search import TrialRow
from adapt.tuning.trials import Trials
from adapt.tuning.watched import Watched, best_first, trials_now
from tests.tuning.scripted import ScriptedSearch


def drawn(trials: Trials, count: int) -> list[list[str]]:
    """The words of each line."""
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rich_table(trials_now(trials, count).table(), console))
    return [line.replace("│", " ").replace("┃", " ").split() for line in console.export_text().splitlines()]


def score(values: Mapping[str, Any]) -> float:
    if values["a.x"] == 4:
        raise DataError("no text", "bring some")
    return float(values["a.x"])


def test_trials_under_way_and_the_best_that_have_ended(tmp_path: Path) -> None:
    search: Any = ScriptedSearch(score, tmp_path / "notes")
    trials = Trials(search, Store(tmp_path / "runs"), (None, 4))
    for number in range(5):
        trials.begin((number, 0), {"a.x": number})
    while len(trials.rows) < 5:
        trials.look()
    trials.begin((5, 0), {"a.x": 9})
    lines = drawn(trials, 8)
    assert lines[0] == ["5", "of", "8", "trials", "have", "ended,", "1", "failed"]
    assert [line for line in lines if line[:1] == ["5"]][1] == ["5", "waits", "(0", "of", "1", "stages)", "x", "9"]
    *measured, failed = [line for line in lines if line[-2:-1] == ["x"]][1:]
    assert measured == [[str(number), f"{number}.0000", "x", str(number)] for number in (3, 2, 1, 0)]
    assert failed == ["4", "failed:", "no", "text", "x", "4"]


def test_what_a_search_writes_down_is_what_it_draws_and_goes_when_it_has_ended(tmp_path: Path) -> None:
    search: Any = ScriptedSearch(score, tmp_path / "notes")
    trials, drawn = Trials(search, Store(tmp_path / "runs"), (None, 4)), list[Any]()
    assert TrialsNow.load(tmp_path) is None
    watched = Watched(trials, 8, tmp_path, drawn.append)
    trials.begin((0, 0), {"a.x": 2})
    watched.look(False)
    written = TrialsNow.load(tmp_path)
    assert written == trials_now(trials, 8)
    assert [(trial.number, trial.values, trial.state) for trial in written.trials] == [
        (0, "x 2", "waits (0 of 1 stages)")
    ]
    while not trials.rows:
        trials.look()
    watched.look(False)
    assert len(drawn) == 2
    assert TrialsNow.load(tmp_path) == written  # it is not written down more than once a second
    watched.look(True)
    assert TrialsNow.load(tmp_path) == trials_now(trials, 8) != written
    watched.close()
    assert TrialsNow.load(tmp_path) is None


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    for content in ("", "[]", '{"trials": 3}', '{"trials": [], "counts": 1}'):
        (tmp_path / "trials.json").write_text(content)
        assert TrialsNow.load(tmp_path) is None


def test_those_that_came_furthest_stand_first_and_losses_should_be_low() -> None:
    rows = [
        TrialRow(number, {}, "", {"loss": Estimate(value)} if value else {}, steps=steps)
        for number, (value, steps) in enumerate([(1.0, 30), (3.0, 90), (2.0, 90), (None, 90)])
    ]
    assert [row.number for row in best_first(rows, "loss", "min")] == [2, 1, 0]
    assert [row.number for row in best_first(rows, "loss", "max")] == [1, 2, 0]
