"""Tests how the trials of a search run, and how they are displayed while they run."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log10
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from rich.console import Console

from adapt.config import Config, FinetuneConfig, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.runner import Done, Outcome, Store
from adapt.show.progress.chain_now import TrialsNow
from adapt.show.renderers import drawn_table
from adapt.support.errors import ConfigError, DataError
from adapt.tuning.job_trial import TrialMeasured
from adapt.tuning.proposals import proposals
from adapt.tuning.run_trials import Trials, TrialsDisplay, run_trials, trials_now
from adapt.tuning.search_stage import TrialRow, best_first
from tests.tuning.scripted import Scripted, ScriptedSearch

SPACE = {"a.x": tune.loguniform(1e-4, 1e-1), "a.y": tune.choice([1, 2, 3])}


def score(values: Mapping[str, Any]) -> float:
    """Returns a score whose maximum is 1, at x = 0.01 and y = 2."""
    return 1 - (log10(values.get("a.x", 1e-4)) + 2) ** 2 - abs(values.get("a.y", 1) - 2)


def ended(search: Any, values: Mapping[str, Any], root: Path, number: int = 1) -> Trials:
    """Runs a trial with these values to its end, and returns the `Trials` object."""
    trials = Trials(search, Store(root), (None, 2))
    trials.begin((number, 0), values)
    while (number, 0) not in trials.rows:
        trials.look()
    return trials


def test_a_trial_is_measured_as_its_stage_says(tmp_path: Path) -> None:
    search = ScriptedSearch(score, tmp_path / "notes")
    row = ended(search, {"a.x": 0.01, "a.y": 2}, tmp_path / "runs").rows[1, 0]
    assert (row.figures["dev_score"].value, row.error, row.fitting) == (1.0, "", {})


def test_a_trial_that_runs_out_of_memory_goes_on_with_fewer_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ScriptedSearch(score, tmp_path / "notes", fitting=3)
    row = ended(search, {"a.x": 0.01}, tmp_path / "runs").rows[1, 0]
    assert (row.fitting, row.error) == ({"training.micro_batch": 2}, "")
    assert row.settings == {"a.x": 0.01, "training.micro_batch": 2}
    assert (
        "trial 1: a device ran out of memory with 8 sequences per pass; the trial continues with training.micro_batch 4"
        in (capsys.readouterr().err)
    )
    # The trial ran three times: with micro-batches of 8, 4 and 2 sequences.
    assert len(search.notes.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "asked", "kept"),
    [(8, 8, 2), (8, 2, 2), ("auto", 2, 2), ("auto", "auto", None), (8, None, 2), (2, 2, None)],
)
def test_the_micro_batch_that_a_finished_training_took_is_kept(
    given: Any, asked: Any, kept: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial of a resumed search reuses the smaller micro-batch that its finished training needed.

    `given` is the micro-batch that the search configures now. `asked` is the micro-batch that was configured when the
    training ran, as its record says. The training ran with micro-batch 2. The trial does not reuse this value if `auto`
    chose it, or if the search configures the same value.
    """

    @dataclass(frozen=True, eq=False)
    class Trained(Scripted):
        kind = "train"

        @property
        def config(self) -> Config:
            config = ScriptedSearch(score, tmp_path / "notes").config
            return replace(config, training=replace(config.training, micro_batch=given))

        def run(self, folder: Path, done: Done) -> Outcome[TrialMeasured]:
            ran = {"workers": 1, "micro_batch": 2, **({"micro_batch_asked": asked} if asked else {})}
            return replace(super().run(folder, done), resources=ran)

    monkeypatch.setattr("adapt.tuning.job_trial.Train", Trained)
    search = ScriptedSearch(score, tmp_path / "notes")
    training = Trained("training", {}, score, 8, 64, tmp_path / "notes")
    own = search.trial
    monkeypatch.setattr(search, "trial", lambda values, *_: replace(own(values), runs={"its": training}))
    row = ended(search, {"a.x": 0.01}, tmp_path / "runs").rows[1, 0]
    assert row.settings == {"a.x": 0.01, **({"training.micro_batch": kept} if kept else {})}


@pytest.mark.parametrize(("given", "kept"), [(None, 3), (8, 3), (3, None), (2, None)])
def test_the_micro_batch_that_finished_fine_tuning_took_is_kept(
    given: int | None, kept: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True, eq=False)
    class Taught(Scripted):
        kind = "finetune"

        @property
        def config(self) -> Config:
            return Config(finetune=FinetuneConfig(micro_batch=given))

        def run(self, folder: Path, done: Done) -> Outcome[TrialMeasured]:
            return replace(super().run(folder, done), resources={"micro_batch": 3})

    monkeypatch.setattr("adapt.tuning.job_trial.Finetune", Taught)
    search = ScriptedSearch(score, tmp_path / "notes")
    run = Taught("run", {}, score, 8, 64, tmp_path / "notes")
    own = search.trial
    monkeypatch.setattr(search, "trial", lambda values, *_: replace(own(values), runs={"its": run}))
    row = ended(search, {}, tmp_path / "runs").rows[1, 0]
    assert row.settings == ({"finetune.micro_batch": kept} if kept else {})


def test_a_trial_that_does_not_fit_with_one_sequence_has_failed(tmp_path: Path) -> None:
    search = ScriptedSearch(score, tmp_path / "notes", fitting=0)
    row = ended(search, {"a.x": 0.01}, tmp_path / "runs").rows[1, 0]
    assert row.error == "a device ran out of memory with 1 sequences per pass"
    assert row.figures == {}


def test_a_trial_without_an_objective_names_it_and_what_is_reported(tmp_path: Path) -> None:
    """A search ends if the unchanged configuration does not report the objective. Other trials fail for themselves."""
    search = ScriptedSearch(score, tmp_path / "notes", TuneConfig(objectives=["losses.domain.after"]))
    trials = ended(search, {"a.x": 0.01}, tmp_path / "runs")
    assert trials.rows[1, 0].error == "the trial reports no losses.domain.after; it reports dev_score"
    assert trials.rows[1, 0].figures == {}
    assert isinstance(trials.first_error, ConfigError)
    with pytest.raises(ConfigError, match=r"reports no losses\.domain\.after; it reports dev_score") as caught:
        ended(search, {}, tmp_path / "runs", number=0)
    assert "corpus.heldout_fraction" in caught.value.fix


def test_refused_trials_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trial 1 took 3 device-hours. The values of trials 2 to 4 contradict each other, so only trial 5 would add 3."""
    search = ScriptedSearch(score, tmp_path / "notes", TuneConfig(budget_device_hours=10))
    trials = Trials(search, Store(tmp_path / "runs"), (None, 2))  # type: ignore[arg-type]
    monkeypatch.setattr(trials, "hours", lambda numbers: 3.0 if 1 in numbers else 0.0)
    trials.begin((1, 0), {"a.x": 0.01})
    while not trials.rows:
        trials.look()

    def refuse(values: Mapping[str, Any], turn: int = -1, is_finalist: bool = False) -> Any:
        raise ConfigError("a.x and a.y contradict each other", "change one of them")

    monkeypatch.setattr(search, "trial", refuse)
    for number in (2, 3, 4):
        trials.begin((number, 0), {"a.x": 0.01})
    # Trials 0 and 5 are assumed to take 3 device-hours each: 9 of at most 10.
    assert trials.may_begin(5) is True
    assert trials.may_begin(6) is False


def test_no_trial_begins_that_would_go_beyond_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished trial is assumed to cost as much as the most expensive finished trial.

    Before any trial has finished, this cost is unknown and `may_begin` returns None.
    """
    taken = {1: 1.0, 2: 3.0}
    search = ScriptedSearch(score, tmp_path / "notes", TuneConfig(budget_device_hours=10.5))
    trials = Trials(search, Store(tmp_path / "runs"), (None, 2))  # type: ignore[arg-type]
    monkeypatch.setattr(trials, "hours", lambda numbers: sum(hours for each, hours in taken.items() if each in numbers))
    trials.begin((1, 0), {"a.x": 0.01})
    assert trials.may_begin(2) is None
    trials.begin((2, 0), {"a.x": 0.02})
    while len(trials.rows) < 2:
        trials.look()
    # Trials 1 and 2 took 4 device-hours. Trials 0 and 3 are assumed to take 3 each. The sum is 10 of at most 10.5.
    assert trials.may_begin(3) is True
    assert trials.may_begin(4) is False
    search.tune = TuneConfig()
    assert trials.may_begin(400) is True


@pytest.mark.slow
def test_a_known_optimum_is_found_and_what_fails_is_a_result(ray_cluster: None, tmp_path: Path) -> None:
    def objective(values: Mapping[str, Any]) -> float:
        if values.get("a.y") == 3:
            raise DataError("there is no such text", "bring some")
        return score(values)

    search: Any = ScriptedSearch(objective, tmp_path / "notes", TuneConfig(searcher="tpe", samples=20, at_once=2))
    asked = proposals(SPACE, search.config.tune, [False])
    ran = run_trials(search, asked, Store(tmp_path / "runs"), tmp_path / "search")
    assert [row.number for row in ran.rows] == [*range(21)]
    best = max((row for row in ran.rows if row.figures), key=lambda row: row.figures["dev_score"].value)
    assert best.values["a.y"] == 2
    assert best.figures["dev_score"].value > 0.9
    failed = [row for row in ran.rows if row.error]
    assert failed
    assert all(row.values["a.y"] == 3 and row.error == "there is no such text" for row in failed)
    assert len((tmp_path / "notes").read_text().splitlines()) == 21
    assert len([*(tmp_path / "search" / "tensorboard").iterdir()]) >= 21


def drawn(trials: Trials, count: int) -> list[list[str]]:
    """Returns the words of each line of the rendered table."""
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(drawn_table(trials_now(trials, count).table(), console))
    return [line.replace("│", " ").replace("┃", " ").split() for line in console.export_text().splitlines()]


def watched_score(values: Mapping[str, Any]) -> float:
    if values["a.x"] == 4:
        raise DataError("no text", "bring some")
    return float(values["a.x"])


def test_trials_under_way_and_the_best_that_have_ended(tmp_path: Path) -> None:
    search: Any = ScriptedSearch(watched_score, tmp_path / "notes")
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


def test_the_progress_file_equals_the_table_and_is_removed_at_the_end(tmp_path: Path) -> None:
    search: Any = ScriptedSearch(watched_score, tmp_path / "notes")
    trials, drawn = Trials(search, Store(tmp_path / "runs"), (None, 4)), list[Any]()
    assert TrialsNow.load(tmp_path) is None
    watched = TrialsDisplay(trials, 8, tmp_path, drawn.append)
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
    # The file is written at most once per second, so it still has the previous state.
    assert TrialsNow.load(tmp_path) == written
    watched.look(True)
    assert TrialsNow.load(tmp_path) == trials_now(trials, 8) != written
    watched.close()
    assert TrialsNow.load(tmp_path) is None


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    for content in ("", "[]", '{"trials": 3}', '{"trials": [], "counts": 1}'):
        (tmp_path / "trials.json").write_text(content)
        assert TrialsNow.load(tmp_path) is None


def test_trials_with_most_steps_and_the_lowest_loss_come_first() -> None:
    rows = [
        TrialRow(number, {}, "", {"loss": Estimate(value)} if value else {}, steps=steps)
        for number, (value, steps) in enumerate([(1.0, 30), (3.0, 90), (2.0, 90), (None, 90)])
    ]
    assert [row.number for row in best_first(rows, "loss", "min")] == [2, 1, 0]
    assert [row.number for row in best_first(rows, "loss", "max")] == [1, 2, 0]
