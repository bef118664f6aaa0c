"""A cluster that can never hold a trial is told before the first one."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt import runtime
from adapt.config import Config, ResourcesConfig
from adapt.errors import ClusterError
from adapt.job.registry import JOBS
from adapt.tuning.place import check_place
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
