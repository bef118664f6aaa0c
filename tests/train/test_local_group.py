"""Tests that the resources of ranks on our own Ray are freed, even if the controller is killed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ray.train import RunConfig, ScalingConfig, UserCallback, report
from ray.train.torch import TorchTrainer

from adapt.train.local_group import LocalTorchConfig, free_reserved


class Die(UserCallback):
    """A callback that kills the controller."""

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def a_rank() -> None:
    report({"loss": 1.0})


@pytest.mark.usefixtures("ray_cluster")
def test_resources_of_a_killed_controller_are_freed(tmp_path: Path) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    others = placement_group([{"CPU": 0.5}])
    ray.get(others.ready(), timeout=60)
    free = ray.cluster_resources()["CPU"] - 0.5
    config = RunConfig(name="look", storage_path=str(tmp_path / "run"), callbacks=[Die()])
    local = tmp_path / "local"
    local.mkdir()
    trainer = TorchTrainer(
        a_rank,
        torch_config=LocalTorchConfig(folder=str(local)),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=config,
    )
    with pytest.raises(ray.exceptions.ActorDiedError):
        trainer.fit()
    try:
        free_reserved(local)
        free_reserved(local)  # freeing twice has no further effect
        deadline = time.monotonic() + 60
        while ray.available_resources()["CPU"] != free and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ray.available_resources()["CPU"] == free
    finally:
        remove_placement_group(others)
