"""Tests trackers with the real packages: resumed runs continue at their checkpoint, and no password is stored."""

import importlib.util
import json
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.summary.writer import event_file_writer

from adapt.config import Config, TrackingConfig, TrainingConfig
from adapt.model.locate import Pretrained
from adapt.support.errors import ConfigError
from adapt.train import metric_trackers
from adapt.train.metric_trackers import (
    ENVIRONMENT,
    PARTS,
    File,
    RayMetrics,
    Trackers,
    anchored,
    check_trackers,
    gauge_name,
    mlflow_folder,
)
from adapt.train.training_run import METRICS_FILE, TrainingRun
from adapt.train.worker_process import CORE_WAIT

pytestmark = pytest.mark.usefixtures("offline_trackers")


def runs(folder: Path) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(str(folder))
    return list(client.search_runs([client.get_experiment_by_name("dontstop").experiment_id]))


def test_mlflow_continues_the_run_of_a_training_that_is_resumed(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    store = tmp_path / "mlflow"
    job = a_job(tmp_path, mlflow_uri=str(store))
    Path(job.folder).mkdir()
    crash(job, 6)
    (run,) = runs(store)
    assert (run.info.status, run.info.run_name) == ("FAILED", "tracked")

    train(job, 4, 8, attempt=2)
    train(a_job(tmp_path, "another", mlflow_uri=f"file://{store}"), 0, 1)
    other, run = sorted(runs(store), key=lambda run: run.data.tags["dontstop.key"] == KEY)
    assert other.data.tags["dontstop.key"] == "another"
    assert run.info.status == "FINISHED"
    assert run.data.params["training.learning_rate"] == "0.25"
    assert not [name for name in run.data.params if name.startswith("tracking.")]
    # MLflow cannot replace logged values, so steps 5 and 6 keep the values that attempt 1 logged
    expected = [report(step, 1 if step <= 6 else 2) for step in range(1, 9)]
    for name in report(1, 1):
        history = MlflowClient(str(store)).get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in history] == [(r["step"], r[name]) for r in expected]


def test_mlflow_gets_the_measurement_before_the_first_step(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    store = tmp_path / "mlflow"
    train(a_job(tmp_path, mlflow_uri=str(store)), -1, 2)
    (run,) = runs(store)
    history = MlflowClient(str(store)).get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in history] == [0, 1, 2]


@pytest.mark.parametrize("folder_is_left", [False, True])
def test_mlflow_gets_a_new_run_for_a_training_that_starts_again(tmp_path: Path, folder_is_left: bool) -> None:
    """A training run that starts from the beginning gets a new MLflow run, although its key is the same.

    The run starts from the beginning because its folder was deleted or contains no whole checkpoint.
    """
    from mlflow.tracking import MlflowClient

    store = tmp_path / "mlflow"
    job = a_job(tmp_path, mlflow_uri=str(store))
    train(job, 0, 3)
    if not folder_is_left:
        shutil.rmtree(job.folder)
    train(job, 0, 3, attempt=2)
    found = runs(store)
    assert [run.data.tags["dontstop.key"] for run in found] == [KEY, KEY]
    losses = [MlflowClient(str(store)).get_metric_history(run.info.run_id, "loss") for run in found]
    expected = [[(step, report(step, attempt)["loss"]) for step in (1, 2, 3)] for attempt in (1, 2)]
    assert sorted([(point.step, point.value) for point in each] for each in losses) == expected


def records(file: Path) -> Iterator[Any]:
    """Yields the records of a .wandb file, which consists of a header and LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of the block is too short for a header
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of a record
            yield Record.FromString(whole)
            whole = b""


def finished(file: Path) -> list[Any]:
    """Waits until W&B's process has written the last record, and returns all records."""
    deadline = time.monotonic() + 600
    while not any(record.WhichOneof("record_type") == "exit" for record in records(file)):
        assert time.monotonic() < deadline, f"{file} does not end"
        time.sleep(0.1)
    return list(records(file))


def test_wandb_continues_the_run_of_a_training_that_is_resumed(tmp_path: Path) -> None:
    job = a_job(tmp_path, wandb_project="tracks")
    Path(job.folder).mkdir()
    crash(job, 6)
    train(job, 4, 8, attempt=2)
    steps, ids = [], set()
    for file in sorted((tmp_path / "train" / "wandb").glob("offline-run-*/*.wandb"), key=lambda f: f.stat().st_mtime):
        found = finished(file)
        (run,) = (record.run for record in found if record.WhichOneof("record_type") == "run")
        assert (run.project, run.display_name) == ("tracks", "tracked")
        ids.add(run.run_id)
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["training.learning_rate"] == 0.25
        assert not [name for name in config if name.startswith("tracking.")]
        reports = [record.history for record in found if record.WhichOneof("record_type") == "history"]
        steps.append([each.step.num for each in reports])
        values = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in reports[-1].item}
        assert values["loss"] == pytest.approx(report(steps[-1][-1], len(steps))["loss"])
        (ended,) = (record.exit for record in found if record.WhichOneof("record_type") == "exit")
        assert ended.exit_code == (1 if len(steps) == 1 else 0)
    assert steps == [[1, 2, 3, 4, 5, 6], [5, 6, 7, 8]]
    assert len(ids) == 1


class Known:
    """Imitates W&B, which ignores steps that a run already has."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = {}

    def init(self, id: str, **_: Any) -> SimpleNamespace:
        steps = self.runs.setdefault(id, [])
        taken = lambda _, step: steps.append(step) if step > max(steps, default=0) else None  # noqa: E731
        return SimpleNamespace(log=taken, finish=lambda exit_code: None)


def test_wandb_gets_a_new_run_for_a_training_that_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    known = Known()
    monkeypatch.setattr(wandb, "init", known.init)
    job = a_job(tmp_path, wandb_project="tracks")
    train(job, 0, 3)
    shutil.rmtree(job.folder)
    train(job, 0, 3)
    train(job, 2, 5)
    assert list(known.runs.values()) == [[1, 2, 3], [1, 2, 3, 4, 5]]


DASHBOARD = json.loads((Path(__file__).parents[2] / "cluster" / "grafana.json").read_text())


class Gauge:
    """Imitates Ray's gauge."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name, self.tag_keys, self.values = name, tag_keys, list[tuple[float, dict[str, str]]]()

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == set(self.tag_keys)
        self.values.append((value, tags))


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[str, Gauge]:
    made: dict[str, Gauge] = {}
    monkeypatch.setattr("ray.util.metrics.Gauge", lambda *given: made.setdefault(given[0], Gauge(*given)))
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    return made


def test_numbers_of_a_report_become_gauges(gauges: dict[str, Gauge]) -> None:
    tracker = RayMetrics("cs", "0123456789abcdef" * 4)
    tracker.log({"step": 1, "loss": 3.5, "note": "x", "is_last": False, "loss of mlm": 2.0}, 1)
    tracker.log({"step": 2, "loss": 2.5}, 2)
    assert {name: [value for value, _ in gauge.values] for name, gauge in gauges.items()} == {
        "dontstop_train_step": [1, 2],
        "dontstop_train_loss": [3.5, 2.5],
        "dontstop_train_loss_of_mlm": [2.0],
    }
    assert gauges["dontstop_train_loss"].values[0][1] == {"name": "cs", "key": "0123456789abcdef"}


def test_without_ray_no_gauges_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    RayMetrics("cs", "0" * 64).log({"loss": 1.0}, 1)


def test_the_dashboard_draws_what_trainings_report() -> None:
    drawn: set[str] = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (name, labels) = re.fullmatch(r"(\w+)\{(.+)\}", target["expr"]).groups()  # type: ignore[union-attr]
            assert set(re.findall(r"(\w+)=~", labels)) == {"name", "SessionName"}
            drawn.add(name)
    parts = {key for name, (key, _) in PARTS.items() if name not in ("NPMI", "best", "texts", "padding")}
    told = {*parts, CORE_WAIT, "step", "eta_s", "gradient_norm", "plasticity"}
    assert drawn == {f"ray_{gauge_name(metric)}" for metric in told}
    assert metric_trackers.PREFIX in drawn.pop()


def test_the_dashboard_is_valid() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used == variables


@pytest.fixture
def offline_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets W&B's key as on a user's machine, but in offline mode and with a temporary home folder."""
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")  # lets monkeypatch restore the variable if the code sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))


KEY = "0a1b2c3d" * 8
API_KEY = "5ec4e75ec4e75ec4e75ec4e75ec4e75ec4e75ec4"


def a_job(folder: Path, key: str = KEY, **tracking: str) -> TrainingRun:
    config = Config("tracked", training=TrainingConfig(learning_rate=0.25), tracking=TrackingConfig(**tracking))
    pretrained = Pretrained(folder, folder, False)
    return TrainingRun(config, key, str(folder / "train"), ("corpus",), (), pretrained, 8)


def report(step: int, attempt: int) -> dict[str, Any]:
    return {"step": step, "steps": 8, "loss": attempt + 1 / (step + 1), "learning_rate": 1e-4}


def train(job: TrainingRun, first: int, last: int, attempt: int = 1) -> None:
    """Reports the steps from `first` + 1 to `last`, as a run that resumes at the checkpoint of step `first`.

    If `first` is -1, the run starts at step 0 and also reports the measurement before the first step.
    """
    Path(job.folder).mkdir(exist_ok=True)
    with Trackers(job, max(first, 0), active=True) as trackers:
        for step in range(first + 1, last + 1):
            trackers.log(report(step, attempt))


class CrashError(Exception):
    pass


def crash(job: TrainingRun, last: int) -> None:
    """Reports the steps up to `last`, then fails."""
    with suppress(CrashError), Trackers(job, 0, active=True) as trackers:
        for step in range(1, last + 1):
            trackers.log(report(step, 1))
        raise CrashError


RESUMED = [report(step, 1) for step in range(1, 5)] + [report(step, 2) for step in range(5, 9)]
"""Expected reports of a run that reached step 6, was resumed at step 4, and then finished."""


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_report_is_written_to_the_file_at_once(tmp_path: Path) -> None:
    file = File(tmp_path / METRICS_FILE, 0)
    for step in (1, 2):
        file.log(report(step, 1), step)
        assert written(tmp_path / METRICS_FILE) == [report(n, 1) for n in range(1, step + 1)]
    file.close(failed=False)


def test_lines_of_steps_that_are_repeated_after_a_crash_are_removed(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    train(job, 0, 6)
    train(job, 4, 8, attempt=2)
    assert written(tmp_path / "train" / METRICS_FILE) == RESUMED


def test_a_run_that_starts_again_reports_the_measurement_before_the_first_step_once(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    train(job, -1, 2)
    train(job, -1, 1, attempt=2)
    expected = [report(step, 2) for step in (0, 1)]
    assert written(tmp_path / "train" / METRICS_FILE) == expected
    assert scalars(tmp_path)["train/loss"] == [(each["step"], each["loss"]) for each in expected]


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
def test_incomplete_lines_of_the_file_are_removed(tmp_path: Path, name: str) -> None:
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
def test_tensorboard_shows_each_step_once(
    tmp_path: Path, first: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed steps replace the earlier reports of these steps.

    The cases resume at step 4, at the last report, and before all checkpoints. In one case, the second attempt ends at
    an earlier step than the first attempt.
    """
    # TensorBoard reads files in the order of their names. Within a second, a process numbers its files, and 10 sorts
    # before 9. Attempts of a real run are different processes.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    job = a_job(tmp_path)
    train(job, 0, 6)
    train(job, first, last, attempt=2)
    expected = [report(step, 1) for step in range(1, first + 1)]
    expected += [report(step, 2) for step in range(first + 1, last + 1)]
    assert scalars(tmp_path) == {f"train/{name}": [(r["step"], r[name]) for r in expected] for name in report(1, 1)}


class Stuck:
    """Imitates a tracker whose server does not answer."""

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
    monkeypatch.setattr(metric_trackers, "open_trackers", lambda *_: [tracker])
    monkeypatch.setattr(metric_trackers, "_FAILED_S", 0.1)
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
def test_workers_use_the_drivers_absolute_folder(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracking = TrackingConfig(mlflow_uri=uri, wandb_project="p")
    check_trackers(tracking)
    folder = FOLDERS[uri] and Path(FOLDERS[uri]).expanduser()
    assert mlflow_folder(tracking) == folder
    assert anchored(tracking) == TrackingConfig(str(tmp_path / folder) if folder else uri, "p")


def test_without_mlflow_the_folder_is_none() -> None:
    assert mlflow_folder(TrackingConfig()) is None
    assert anchored(TrackingConfig()) == TrackingConfig()


def test_other_ranks_track_nothing(tmp_path: Path) -> None:
    with Trackers(a_job(tmp_path, wandb_project="tracks"), 0, active=False) as trackers:
        trackers.log(report(1, 1))
    assert os.listdir(tmp_path) == []
