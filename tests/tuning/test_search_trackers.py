"""Tests how trackers record a search: training runs are nested in trials, and trials are nested in the search."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient, MlflowException
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from adapt.config import Config, TrackingConfig
from adapt.evaluate.measurements import Estimate
from adapt.job import JOBS
from adapt.runner import Store
from adapt.tuning.job_trial import on_dev, trial_of
from adapt.tuning.search_stage import Search, TrialRow
from adapt.tuning.search_trackers import PARENT, SearchTrackers
from tests.job.worlds import task_world

ROWS = [
    TrialRow(0, {}, "a" * 64, {"dev_score": Estimate(0.5)}),
    TrialRow(1, {"training.learning_rate": 3e-3, "das.normalize": "rank"}, "b" * 64, {"dev_score": Estimate(0.6)}),
    TrialRow(2, {"training.learning_rate": 1.0}, "c" * 64, {}, "the loss is not finite"),
]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """Returns a search over TAPT whose runs are tracked by MLflow in a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = replace(task_world(tmp_path, monkeypatch), tracking=TrackingConfig(mlflow_uri=str(tmp_path / "mlruns")))

    def configure(values: Any) -> Config:
        return config

    return Search("tapt", JOBS["tapt"], config, configure, "space.yaml", "digest", "as it is")


def noted(search: Search, folder: Path) -> Any:
    """Sends all lines of metrics to the trackers of a search and returns an MLflow client.

    MLflow already has a run for the training of trial 1.
    """
    store, trial = Store(folder / "runs"), trial_of(search.job, on_dev(search.config))
    training = trial.final.training  # type: ignore[attr-defined]
    place = store.folder(training.kind, training.name, training.key)
    place.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"step": n, "loss": 9.0 - n}) + "\n" for n in (1, 2))
    # The last line is incomplete because the trial was killed while it wrote the line.
    (place / "metrics.jsonl").write_text(lines + '{"step": 3, "lo')
    client = MlflowClient(tracking_uri=search.config.tracking.mlflow_uri)
    trackers = SearchTrackers(search, folder / "search", store)
    experiment = client.get_experiment_by_name("dontstop").experiment_id
    if not client.search_runs([experiment], f"tags.`dontstop.key` = '{training.key}'"):
        client.create_run(experiment, tags={"dontstop.key": training.key}, run_name="training")
    for row in ROWS:
        trackers.note(row, trial if row.number == 1 else None)
    trackers.close()
    return client


def test_mlflow_nests_trials_and_their_trainings_once_however_often_a_search_goes_on(
    search: Search, tmp_path: Path
) -> None:
    noted(search, tmp_path)
    # The same search runs again after it was killed.
    client = noted(search, tmp_path)
    runs = client.search_runs([client.get_experiment_by_name("dontstop").experiment_id])
    named = {run.info.run_name: run for run in runs}
    assert len(runs) == len(named) == 5
    whole, first = named[search.config.name], named["trial 1"]
    assert [named[f"trial {number}"].data.tags[PARENT] for number in range(3)] == [whole.info.run_id] * 3
    assert named["training"].data.tags[PARENT] == first.info.run_id
    assert first.data.params == {"training.learning_rate": "0.003", "das.normalize": "rank"}
    assert first.data.metrics == {"dev_score": 0.6}
    assert [run.info.status for run in (whole, first, named["trial 2"])] == ["FINISHED", "FINISHED", "FAILED"]
    assert named["trial 2"].data.tags["dontstop.error"] == "the loss is not finite"


def test_an_outage_of_mlflow_is_reported_once_and_ends_no_search(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackers = SearchTrackers(search, tmp_path / "search", Store(tmp_path / "runs"))

    def fail(*_: Any, **__: Any) -> None:
        raise MlflowException("the server does not answer")

    for method in ("search_runs", "set_terminated"):
        monkeypatch.setattr(MlflowClient, method, fail)
    for row in ROWS:
        trackers.note(row, None)
    trackers.close()
    said = capsys.readouterr().err
    assert said.count("MLflow lacks results of this search, which continues: the server does not answer") == 1
    assert len([*(tmp_path / "search" / "tensorboard").iterdir()]) == len(ROWS)


def test_tensorboard_has_a_folder_for_each_trial(search: Search, tmp_path: Path) -> None:
    noted(search, tmp_path)
    folder = tmp_path / "search" / "tensorboard"
    assert {file.name for file in folder.iterdir() if file.is_dir()} == {"trial-0", "trial-1", "trial-2"}
    scalars: dict[str, list[float]] = {}
    for file in (folder / "trial-1").glob("events*"):
        events = EventAccumulator(str(file)).Reload()
        scalars |= {tag: [each.value for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert scalars == {"dev_score": [pytest.approx(0.6)], "train/loss": [8.0, 7.0]}
