"""Tests that the best trials run with more fine-tuning seeds, and that the best of them is chosen."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.runner import Done, Record, Store
from adapt.show.blocks import Table
from adapt.show.report.searches import search_blocks, search_verdicts
from adapt.show.report.study import Study
from adapt.show.report.study_results import searches_of
from adapt.support.errors import AdaptError, ConfigError, DataError
from adapt.tuning import run_trials
from adapt.tuning.run_trials import FINAL, Trials, TrialsRan
from adapt.tuning.search_checks import check_finalists, check_fresh_seeds
from adapt.tuning.search_run import SearchAhead
from adapt.tuning.search_stage import Search, TrialRow
from tests.show.report.fake_searches import fake_search
from tests.tuning.scripted import ScriptedSearch
from tests.tuning.test_confirm import search as search
from tests.tuning.test_search_forecast import finished, seeds_of

EARLY = {0: 0.5, 1: 0.9, 2: 0.6, 3: 0.8}
"""Scores of the trials in the search, keyed by number."""
LATER = {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.75}
"""Their scores with more seeds."""


def score(values: Mapping[str, Any]) -> float:
    return (LATER if values.get("finalist") else EARLY)[values["n"]]


def ran(root: Path, objective: Any = score, **tune: Any) -> Trials:
    """Runs four trials of a fake search and then its finalists, and returns the `Trials` object."""
    search: Any = ScriptedSearch(objective, root / "notes", TuneConfig(finalist_seeds=[7, 8], **tune))
    trials = Trials(search, Store(root / "runs"), (None, 2))
    for number in EARLY:
        trials.begin((number, 0), {"n": number})
    while len(trials.rows) < len(EARLY):
        trials.look()
    trials.run_finalists(trials.look)
    return trials


def test_the_best_trials_run_with_more_seeds_and_have_the_scores_of_these_runs(tmp_path: Path) -> None:
    rows = ran(tmp_path, finalists=2).last()
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert {row.number: row.figures["dev_score"].value for row in rows} == {0: 0.5, 1: 0.6, 2: 0.6, 3: 0.75}
    assert [row.number for row in rows if row.is_finalist] == [1, 3]
    assert len((tmp_path / "notes").read_text().splitlines()) == 6


def test_without_finalist_seeds_nothing_runs_again(tmp_path: Path) -> None:
    search: Any = ScriptedSearch(score, tmp_path / "notes")
    assert search.finalists([TrialRow(0, {}, "a", {"dev_score": Estimate(1.0)})]) == []


def failing(numbers: set[int]) -> Any:
    def objective(values: Mapping[str, Any]) -> float:
        if values.get("finalist") and values["n"] in numbers:
            raise DataError("no memory", "add some")
        return score(values)

    return objective


def test_a_finalist_that_fails_keeps_its_earlier_result_but_is_no_finalist(tmp_path: Path) -> None:
    trials = ran(tmp_path, failing({3}), finalists=2)
    assert trials.rows[3, FINAL].error == "no memory"
    row = trials.last()[3]
    assert (row.figures["dev_score"].value, row.is_finalist) == (0.8, False)


def test_a_search_whose_finalists_all_fail_has_failed_with_their_error(tmp_path: Path) -> None:
    """Trial 0 failed before, with another error."""

    def objective(values: Mapping[str, Any]) -> float:
        if values["n"] == 0:
            raise DataError("no text", "add some")
        return failing({1, 3})(values)

    with pytest.raises(AdaptError, match="no memory"):
        ran(tmp_path, objective, finalists=2)


def with_finalists(search: Search, seeds: list[int], most: int = 3) -> Search:
    config = search.config
    return replace(search, config=replace(config, tune=replace(config.tune, finalist_seeds=seeds, finalists=most)))


def test_a_finalist_reuses_the_runs_of_its_trial(search: Search) -> None:
    values, more = {"finetune.learning_rate": 1e-3}, with_finalists(search, [21, 22])
    plain, final = (more.trial(values, is_finalist=is_finalist) for is_finalist in (False, True))
    assert plain.key == search.trial(values).key
    ((first,), (second,)) = plain.runs.values(), final.runs.values()
    assert [run.key for run in second[: len(first)]] == [run.key for run in first]
    assert [run.seed for run in second[len(first) :]] == [21, 22]
    assert {run.task.task.test for run in second} == {search.config.task.dev}  # test is not read


def test_finalist_seeds_change_the_key_of_a_search_only_if_they_are_given(search: Search) -> None:
    keys = [with_finalists(search, seeds, most).key for seeds, most in (([], 5), ([21], 3), ([21], 2), ([22], 3))]
    assert keys[0] == search.key
    assert len({*keys}) == 4


def test_the_best_trial_is_a_finalist(search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trial 1 has the highest mean of all, but over fewer seeds."""

    def row(number: int, value: float, is_finalist: bool) -> TrialRow:
        values = {"finetune.learning_rate": 1e-3} if number else {}
        return TrialRow(number, values, "a", {"dev_score": Estimate(value)}, is_finalist=is_finalist)

    rows = [row(0, 0.5, False), row(1, 0.8, False), row(2, 0.6, True), row(3, 0.7, True)]
    more = with_finalists(search, [21, 22], 2)
    monkeypatch.setattr(run_trials, "run_trials", lambda *_: TrialsRan(rows, 0.0, 1, 0))
    monkeypatch.setattr(Search, "check", lambda self: ({}, None))
    found = more.run(tmp_path, Done({})).result
    assert (found.best, found.front, found.finalist_seeds) == (3, [3], [21, 22])
    assert [each.number for each in found.in_order()] == [3, 2, 1, 0]
    record = Record("search", "s", "k", 1, {}, {}, asdict(found), {}, {}, {}, {}, "", tmp_path)
    said, table, *_ = [block for block in found.blocks(record) if not isinstance(block, str)]
    assert "highest dev_score of 2 finalists (of 4 trials)" in str(said)
    assert isinstance(table, Table)
    assert [cells[0] for cells in table.rows] == ["3* (finalist)", "2 (finalist)", "1", "0"]
    assert "Only finalists ran with tune.finalist_seeds (21, 22)." in table.note


def test_the_forecast_counts_the_runs_of_the_finalists(search: Search, tmp_path: Path) -> None:
    store, seeds = Store(tmp_path / "runs"), len(search.config.finetune.seeds)
    for run in seeds_of(search, {}):
        finished(run, store, 2.0)
    more = with_finalists(search, [21, 22], 3)
    tuned = replace(more.config.tune, searcher="grid", samples=2)
    more = replace(more, config=replace(more.config, tune=tuned))
    assert more.finalist_hours(store) == 3 * 2 * 2.0
    assert with_finalists(more, [21, 22], 9).finalist_hours(store) == 3 * 2 * 2.0  # there are only three trials
    ahead = SearchAhead.of(more, store)
    assert ahead.device_hours == 3 * seeds * 2.0 + 12.0
    assert ahead.total().startswith("All 3 trials, and 3 finalists with 2 more seeds, will take about")


def test_no_trial_begins_that_would_leave_too_little_budget_for_the_finalists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search: Any = ScriptedSearch(score, tmp_path / "notes", TuneConfig(budget_device_hours=10, finalist_seeds=[7]))
    trials = Trials(search, Store(tmp_path / "runs"), (None, 2))
    monkeypatch.setattr(trials, "hours", lambda numbers: 3.0 if 1 in numbers else 0.0)
    trials.begin((1, 0), {"n": 1})
    while not trials.rows:
        trials.look()
    assert trials.may_begin(2) is True  # trials 0, 1 and 2 take 9 of 10 hours
    monkeypatch.setattr(ScriptedSearch, "finalist_hours", lambda self, store: 2.0)
    assert trials.may_begin(2) is False


@pytest.mark.parametrize(
    ("seeds", "objective", "message"),
    [
        ([0], "dev_score", r"the trials already use the seeds \[0\]"),
        ([7, 7], "dev_score", "a seed is repeated"),
        ([7], "losses.domain.after", "losses.domain.after does not depend on them"),
    ],
)
def test_finalist_seeds_without_use_are_refused(search: Search, seeds: list[int], objective: str, message: str) -> None:
    config = replace(Config(), tune=TuneConfig(finalist_seeds=seeds, objectives=[objective]))
    with pytest.raises(ConfigError, match=message) as caught:
        check_finalists(config, search.trial({}))
    assert caught.value.fix


def test_a_job_without_fine_tuning_has_no_finalists(search: Search) -> None:
    trial = replace(search.trial({}), runs={})
    with pytest.raises(ConfigError, match="are seeds of fine-tuning"):
        check_finalists(replace(Config(), tune=TuneConfig(finalist_seeds=[7])), trial)


def test_fresh_seeds_are_fresh_for_finalists_too() -> None:
    config = replace(Config(), tune=TuneConfig(finalist_seeds=[7], fresh_seeds=[7, 8]))
    with pytest.raises(ConfigError, match=r"already use the seeds \[7\]"):
        check_fresh_seeds(config)


def test_a_report_lists_finalists_first_and_names_their_seeds(tmp_path: Path) -> None:
    entry = fake_search(tmp_path, 5)
    metrics = entry.record.metrics
    rows = [{**row, "is_finalist": row["number"] in (0, metrics["best"])} for row in metrics["trials"]]
    record = replace(entry.record, metrics={**metrics, "trials": rows, "finalist_seeds": [7, 8]})
    study = Study("one", "base", [replace(entry, finished=replace(entry.finished, record=record))])
    (found,) = searches_of(study)
    assert [trial.is_finalist for trial in found.trials][:3] == [True, True, False]
    assert search_verdicts([found])[0].text.startswith("Of 2 finalists (6 trials), trial")
    table = next(block for block in search_blocks([found]) if isinstance(block, Table))
    assert "Only finalists ran with tune.finalist_seeds (7, 8)." in table.note
    assert getattr(table.rows[0][0], "text", "").endswith(", finalist")
