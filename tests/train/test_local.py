"""On a Ray of our own, Ray Train's controller and workers need no environment of their own."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import UserCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from adapt.ray.runtime import ENVIRONMENT, LOCAL_ENVIRONMENT, PROCESS_ENVIRONMENT
from adapt.train.local import in_idle_processes

OURS = {**ENVIRONMENT, **LOCAL_ENVIRONMENT}
VARIABLES = {name: value for name, value in OURS.items() if name.startswith("RAY_TRAIN")}


def test_ray_train_calls_what_is_put_in_place() -> None:
    assert callable(DataParallelTrainer._initialize_and_run_controller)


class NoActor:
    """In place of an actor: notes what it is made with."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.run = self.get_result = SimpleNamespace(remote=lambda: self)

    @classmethod
    def remote(cls, **given: Any) -> "NoActor":
        return cls(**given)


def test_no_actors_are_asked_for_that_have_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.train import DataConfig, RunConfig, ScalingConfig
    from ray.train.backend import BackendConfig
    from ray.train.v2._internal.callbacks import BackendSetupCallback
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.execution.context import TrainRunContext
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    monkeypatch.setattr(ray, "remote", lambda **options: lambda kind: NoActor)
    monkeypatch.setattr(ray, "get", lambda found: found)
    scaling, backend = ScalingConfig(num_workers=3), BackendConfig()
    context = TrainRunContext(RunConfig(name="look"), None, scaling, backend, DataConfig())
    kept = BackendSetupCallback(backend)
    trainer = in_idle_processes(SimpleNamespace())
    given = trainer._initialize_and_run_controller(
        scaling_policy=FixedScalingPolicy(scaling),
        callbacks=[kept, DatasetsCallback(context, {}), PlacementGroupCleanerCallback()],
        more=1,
    ).given
    assert given["callbacks"] == [kept]
    assert given["more"] == 1
    policy = given["scaling_policy"]
    policy.after_controller_start(context)  # no cluster is there that it could ask
    assert policy.make_decision_for_non_running_worker_group().num_workers == 3
    policy.before_controller_abort()


class Look(UserCallback):
    """In the controller: notes what it runs in."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        import ray

        environment = dict(ray.get_runtime_context().runtime_env)
        variables = {name: os.environ.get(name) for name in VARIABLES}
        known = {"environment": environment, "variables": variables, "rank": metrics[0]}
        self._file.write_text(json.dumps(known))


def a_rank() -> None:
    from ray.train import report

    report({name: os.environ.get(name) for name in PROCESS_ENVIRONMENT})


@pytest.mark.usefixtures("ray_cluster")
def test_nobody_has_a_runtime_environment_and_yet_all_variables(tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    file = tmp_path / "found"
    config = RunConfig(name="look", storage_path=str(tmp_path), callbacks=[Look(file)])
    trainer = TorchTrainer(a_rank, scaling_config=ScalingConfig(num_workers=1), run_config=config)
    in_idle_processes(trainer).fit()
    assert json.loads(file.read_text()) == {
        "environment": {},
        "variables": VARIABLES,
        "rank": PROCESS_ENVIRONMENT,
    }


class Die(UserCallback):
    """In the controller: ends it."""

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("ray_cluster")
def test_what_a_killed_controller_had_reserved_is_free_again(tmp_path: Path) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.util.placement_group import placement_group, remove_placement_group

    others = placement_group([{"CPU": 0.5}])
    ray.get(others.ready(), timeout=60)
    free = ray.cluster_resources()["CPU"] - 0.5
    config = RunConfig(name="look", storage_path=str(tmp_path), callbacks=[Die()])
    trainer = TorchTrainer(a_rank, scaling_config=ScalingConfig(num_workers=1), run_config=config)
    with pytest.raises(ray.exceptions.ActorDiedError):
        in_idle_processes(trainer).fit()
    try:
        deadline = time.monotonic() + 60
        while ray.available_resources()["CPU"] != free and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ray.available_resources()["CPU"] == free
    finally:
        remove_placement_group(others)
