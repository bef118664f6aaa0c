"""MLflow and Weights & Biases, with the real packages: a resumed run goes on, one that is made anew is another."""

import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.train.tracking.tracked import KEY, a_job, crash, report, train

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
    expected = [report(step, 1 if step <= 6 else 2) for step in range(1, 9)]  # what is there, MLflow does not take back
    for name in report(1, 1):
        history = MlflowClient(str(store)).get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in history] == [(r["step"], r[name]) for r in expected]


@pytest.mark.parametrize("folder_is_left", [False, True])
def test_mlflow_has_another_run_for_a_training_that_is_made_anew(tmp_path: Path, folder_is_left: bool) -> None:
    """Of the same key, once its folder was deleted, or no checkpoint in it is whole."""
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
    """What a .wandb file holds: a header, and LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # too little is left of the block
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def finished(file: Path) -> list[Any]:
    """Its records, once its process has written the last: that is another one, which a busy machine may hold up."""
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
    """W&B, as far as runs have names: it passes over the steps that a run has already."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = {}

    def init(self, id: str, **_: Any) -> SimpleNamespace:
        steps = self.runs.setdefault(id, [])
        taken = lambda _, step: steps.append(step) if step > max(steps, default=0) else None  # noqa: E731
        return SimpleNamespace(log=taken, finish=lambda exit_code: None)


def test_wandb_has_another_run_for_a_training_that_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    known = Known()
    monkeypatch.setattr(wandb, "init", known.init)
    job = a_job(tmp_path, wandb_project="tracks")
    train(job, 0, 3)
    shutil.rmtree(job.folder)
    train(job, 0, 3)
    train(job, 2, 5)
    assert list(known.runs.values()) == [[1, 2, 3], [1, 2, 3, 4, 5]]
