"""Tests a cluster's work on batches of rows: killed tasks are repeated, and a lack of memory is reported with a fix."""

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import OutOfMemoryError

from adapt.config import Config, ResourcesConfig, TrainingConfig
from adapt.support.errors import DeviceMemoryError
from adapt.train.over_rows import Share, batches_of, over_rows

CONFIG = Config(training=TrainingConfig(global_batch_size=24, precision="fp32"), resources=ResourcesConfig(workers=2))
BATCHES = batches_of(np.arange(10), 3)


def dying_once(folder: Path, device: Any, precision: str, share: Share) -> list[int]:
    """Returns the batch numbers of a share. The second process is killed by a signal in its first attempt."""
    numbers = [number for number, _ in share]
    mark = folder / "died"
    if numbers[0] and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers


def test_a_killed_task_is_repeated(ray_cluster: None, tmp_path: Path) -> None:
    parts, seconds = over_rows(partial(dying_once, tmp_path), BATCHES, CONFIG)
    assert (tmp_path / "died").exists()
    assert parts == [[0, 2], [1, 3]]
    assert seconds > 0


def test_a_task_killed_by_the_memory_monitor_is_reported_with_its_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(_: Any) -> Any:
        raise OutOfMemoryError("Task was killed due to the node running low on memory.")

    monkeypatch.setattr("ray.cluster_resources", dict)
    monkeypatch.setattr("ray.remote", lambda **_: lambda task: type("Task", (), {"remote": lambda *given: None}))
    monkeypatch.setattr("ray.get", killed)
    with pytest.raises(DeviceMemoryError, match="Ray killed") as caught:
        over_rows(partial(dying_once, Path()), BATCHES, CONFIG, sequences=8)
    assert (caught.value.micro_batch, caught.value.fix) == (8, "set training.micro_batch to 6")


def test_tasks_share_the_cores_with_each_other_and_with_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr("ray.cluster_resources", dict)
    monkeypatch.setattr("ray.remote", lambda **_: lambda task: type("Task", (), {"remote": asked_into(asked)}))
    monkeypatch.setattr("ray.get", lambda tasks: [(0, 1.0, "fp32") for _ in tasks])
    over_rows(
        partial(dying_once, Path()),
        BATCHES,
        replace(CONFIG, resources=ResourcesConfig(workers=2, trainings_per_machine=3)),
    )
    assert [shared_by for *_, shared_by in asked] == [6, 6]


def asked_into(asked: list[tuple[Any, ...]]) -> Any:
    return staticmethod(lambda *given: asked.append(given))
