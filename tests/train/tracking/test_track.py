"""Trackers, with the real packages: a resumed run goes on where its checkpoint is, and nobody's password is kept."""

import importlib.util
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from adapt.config import TrackingConfig
from adapt.errors import ConfigError
from adapt.train.job import METRICS_FILE
from adapt.train.tracking import track
from adapt.train.tracking.track import File, Trackers, anchored, check_trackers, mlflow_folder
from tests.train.tracking.tracked import API_KEY, RESUMED, CrashError, a_job, report, train

pytestmark = pytest.mark.usefixtures("offline_trackers")


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_file_has_a_line_a_report_at_once(tmp_path: Path) -> None:
    file = File(tmp_path / METRICS_FILE, 0)
    for step in (1, 2):
        file.log(report(step, 1), step)
        assert written(tmp_path / METRICS_FILE) == [report(n, 1) for n in range(1, step + 1)]
    file.close(failed=False)


def test_the_file_forgets_the_steps_that_a_crash_took_back(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    train(job, 0, 6)
    train(job, 4, 8, attempt=2)
    assert written(tmp_path / "train" / METRICS_FILE) == RESUMED


WHOLE = [json.dumps(report(step, 1)) for step in range(1, 5)]


TORN = {
    "half a line": "\n".join([*WHOLE, '{"step": 5, "loss": 0.']),
    "all but the line's end": "\n".join(WHOLE),
    "an inner line": "\n".join([*WHOLE[:2], '{"step": 3, {"step": 3}', *WHOLE[2:], ""]),
    "zeros": "\n".join([*WHOLE, "\0" * 100]),
    "no text": "\n".join([*WHOLE, '{"step": 5, "l\udcff']),
    "another kind of JSON": "\n".join([*WHOLE, "7", "{}", '{"step": null}', ""]),
}


@pytest.mark.parametrize("name", TORN)
def test_the_file_drops_lines_that_are_not_whole(tmp_path: Path, name: str) -> None:
    (tmp_path / METRICS_FILE).write_bytes(TORN[name].encode(errors="surrogateescape"))
    file = File(tmp_path / METRICS_FILE, 4)
    for step in range(5, 9):
        file.log(report(step, 2), step)
    file.close(failed=False)
    assert written(tmp_path / METRICS_FILE) == RESUMED


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "train" / "tensorboard")).Reload()
    return {name: [(e.step, pytest.approx(e.value)) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.parametrize(("first", "last"), [(4, 8), (6, 8), (0, 8), (4, 5)])
def test_tensorboard_shows_each_step_once(tmp_path: Path, first: int, last: int) -> None:
    """Whatever step a run resumes at: before all checkpoints, at its last report, or so that it ends before it."""
    job = a_job(tmp_path)
    train(job, 0, 6)
    train(job, first, last, attempt=2)
    expected = [report(step, 1) for step in range(1, first + 1)]
    expected += [report(step, 2) for step in range(first + 1, last + 1)]
    assert scalars(tmp_path) == {f"train/{name}": [(r["step"], r[name]) for r in expected] for name in report(1, 1)}


class Stuck:
    """A tracker whose server does not answer."""

    def __init__(self) -> None:
        self.answer = threading.Event()

    def log(self, metrics: dict[str, Any], step: int) -> None:
        pass

    def close(self, failed: bool) -> None:
        self.answer.wait(60)


class Broken(Stuck):
    def close(self, failed: bool) -> None:
        raise OSError("no such server")


@pytest.mark.parametrize("kind", [Stuck, Broken])
def test_a_tracker_that_cannot_be_closed_does_not_hide_why_a_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Stuck]
) -> None:
    tracker = kind()
    monkeypatch.setattr(track, "_open", lambda *_: [tracker])
    monkeypatch.setattr(track, "_FAILED_S", 0.1)
    began = time.monotonic()
    with pytest.raises(CrashError), Trackers(a_job(tmp_path), 0, active=True):
        raise CrashError
    assert time.monotonic() - began < 600
    tracker.answer.set()


@pytest.mark.heavy
def test_no_key_is_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"WANDB_API_KEY": API_KEY, "MLFLOW_TRACKING_PASSWORD": "5ec4e7pa55", "MLFLOW_TRACKING_TOKEN": "5ec4e770"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    train(a_job(tmp_path, mlflow_uri=str(tmp_path / "mlflow"), wandb_project="tracks"), 0, 2)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"metrics.jsonl", "meta.yaml", "debug.log"} <= {file.name for file in files}
    for file in files:
        assert not [name for name, value in secrets.items() if value.encode() in file.read_bytes()], file


def test_a_password_in_an_address_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        check_trackers(TrackingConfig(mlflow_uri="https://someone:s3cr3t@mlflow.example.com/path"))
    assert "tracking.mlflow_uri holds a password" in str(caught.value)
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.fix
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(("field", "package"), [("mlflow_uri", "mlflow"), ("wandb_project", "wandb")])
def test_a_package_that_is_missing_is_named(field: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = TrackingConfig(**{field: "x"})
    check_trackers(tracking)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ConfigError, match=f"tracking.{field} is set but {package} is not installed") as caught:
        check_trackers(tracking)
    assert caught.value.fix == f"pip install 'dontstop[{package}]'"
    check_trackers(TrackingConfig())


FOLDERS = {
    "runs/mlflow": "runs/mlflow",
    "/shared/mlflow": "/shared/mlflow",
    "file:///shared/mlflow": "/shared/mlflow",
    "~/mlflow": "~/mlflow",
    **dict.fromkeys(["http://host:5000", "https://host/mlflow", "databricks", "databricks://profile"]),
    **dict.fromkeys(["postgresql://someone@host/db", "sqlite:////shared/mlflow.db"]),
}


@pytest.mark.parametrize("uri", FOLDERS)
def test_workers_are_given_the_drivers_folder(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracking = TrackingConfig(mlflow_uri=uri, wandb_project="p")
    check_trackers(tracking)
    folder = FOLDERS[uri] and Path(FOLDERS[uri]).expanduser()
    assert mlflow_folder(tracking) == folder
    assert anchored(tracking) == TrackingConfig(str(tmp_path / folder) if folder else uri, "p")


def test_without_mlflow_there_is_no_folder() -> None:
    assert mlflow_folder(TrackingConfig()) is None
    assert anchored(TrackingConfig()) == TrackingConfig()


def test_other_ranks_track_nothing(tmp_path: Path) -> None:
    with Trackers(a_job(tmp_path, wandb_project="tracks"), 0, active=False) as trackers:
        trackers.log(report(1, 1))
    assert os.listdir(tmp_path) == []
