"""Trials share this machine; a cluster that can never hold one is told before the first."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, ModelConfig, ResourcesConfig, TuneConfig
from adapt.errors import ClusterError
from adapt.job.registry import JOBS
from adapt.ray import runtime
from adapt.runner.reach import everything
from adapt.stage.context import Context
from adapt.stage.train import Train
from adapt.train.capacity import device
from adapt.tuning import place
from adapt.tuning.place import check_place, side_by_side
from adapt.tuning.trial import on_dev, trial_of
from tests.job.worlds import task_world


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one machine with two cores."""

    def placeable(bundle: dict[str, float]) -> int:
        return int(2 // bundle["CPU"])

    monkeypatch.setattr(runtime, "_placeable", placeable)
    monkeypatch.setattr(runtime, "_totals", lambda bundle: {"CPU": 2.0})
    monkeypatch.setattr(runtime, "gpus_per_worker", lambda resources: 0.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def checked(job: str, config: Config) -> None:
    check_place(config, trial_of(JOBS[job], on_dev(config)))


def test_workers_that_cannot_be_placed_are_refused_with_the_nearest_that_can(
    cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task_world(tmp_path, monkeypatch)
    checked("tapt", config)
    with pytest.raises(ClusterError, match="room for 2 of 4 workers") as caught:
        checked("tapt", replace(config, resources=ResourcesConfig(workers=4)))
    assert "set resources.workers to at most 2" in caught.value.fix
    checked("finetune", replace(config, resources=ResourcesConfig(workers=4)))  # which trains on no worker
    checked("tapt", replace(config, resources=ResourcesConfig(workers=(1, 4))))  # the fewest are enough
    with pytest.raises(ClusterError, match="room for 2 of 4 workers"):
        checked("tapt", replace(config, resources=ResourcesConfig(workers=(4, 8))))


def test_fine_tuning_that_takes_more_than_a_machine_has_is_refused(
    cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task_world(tmp_path, monkeypatch)
    for job in ("finetune", "tapt"):
        with pytest.raises(ClusterError, match="room for 0 of 1 workers with 8 CPU") as caught:
            checked(job, replace(config, finetune=replace(config.finetune, cpus_per_seed=8)))
        assert caught.value.fix == "lower finetune.cpus_per_seed or finetune.gpus_per_seed"


@pytest.mark.parametrize(
    ("cores", "at_once", "gib", "resources", "expected"),
    [
        (2, 4, 64, {}, 2),
        (16, 4, 64, {}, 4),
        (16, 4, 64, {"workers": 2, "cpus_per_worker": 3.0}, 2),
        (16, 4, 64, {"workers": (1, 8)}, 2),
        (2, 4, 64, {"workers": 2}, 1),
        (1, 1, 64, {}, 1),
        (16, 4, 64, {"trainings_per_machine": 3}, 3),
        (16, 4, 64, {"address": "auto"}, None),
        (16, 4, 3.5, {}, 3),  # a process takes 1 GiB before it has a model
        (16, 4, 0.5, {}, 1),
        (16, 4, 3.5, {"trainings_per_machine": 4}, 4),
        (16, 4, 3.5, {"workers": 2}, 1),
    ],
)
def test_trials_share_this_machine_if_there_is_a_core_and_memory_for_each_worker(
    cores: int,
    at_once: int,
    gib: float,
    resources: dict[str, Any],
    expected: int | None,
    tiny_bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)})
    monkeypatch.setattr(device, "machine_memory", lambda: int(gib * 2**30))
    world = task_world(tmp_path, monkeypatch)
    world = replace(world, model=ModelConfig(path=str(tiny_bert)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    context = Context.of(replace(world, tune=TuneConfig(at_once=at_once)))
    config = replace(context.config, resources=ResourcesConfig(**resources))
    shared = side_by_side(context.configured(config)).config
    assert shared.resources == replace(config.resources, trainings_per_machine=expected)


def test_trials_on_gpus_do_not_share_the_memory_of_the_machine(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is started to look at them."""
    monkeypatch.setattr(place, "has_gpu", lambda: True)
    monkeypatch.setattr(place, "may_fit", lambda *_: pytest.fail("the memory of the machine was asked for"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    world = task_world(tmp_path, monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = replace(world, model=ModelConfig(path=str(tiny_bert)), tune=TuneConfig(at_once=4))
    assert side_by_side(Context.of(config)).config.resources.trainings_per_machine == 4


def test_how_many_share_a_machine_changes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = on_dev(task_world(tmp_path, monkeypatch))
    found = []
    for trainings in (None, 1, 2):
        shared = replace(config, resources=ResourcesConfig(workers=2, trainings_per_machine=trainings))
        stages = everything([trial_of(JOBS["tapt"], shared)])
        found.append(next(stage for stage in stages if isinstance(stage, Train)))
    assert len({stage.key for stage in found}) == 1
