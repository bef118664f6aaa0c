"""Tests that the installed Ray has the private parts that `adapt.ray.private` uses.

If a test fails here, Ray has changed these parts.
"""

import importlib
import inspect
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import ray_constants, services
from ray._private.node import Node
from ray._private.runtime_env import packaging
from ray._private.state import GlobalState
from ray.core.generated import autoscaler_pb2  # type: ignore[attr-defined]  # made when it is imported
from ray.job_submission import JobSubmissionClient
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.preemption import PreemptionInfo

from adapt.ray import private
from adapt.ray.private import (
    NoopDecision,
    PreemptionError,
    ReschedulingState,
    ResizeDecision,
    RestartingState,
    ScalingDecision,
    ScalingPolicy,
)
from adapt.support.errors import ClusterError


def test_the_loop_that_waits_for_the_raylet_asks_for_the_node() -> None:
    """`waiting_for_raylet` replaces this function."""
    assert parameters(services.get_node) == ["gcs_address", "node_id"]
    assert "ray._private.services.get_node(\n" in inspect.getsource(Node.__init__)


def test_sockets_bind_to_loopback_although_ray_was_imported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr("ray._private.worker._global_node", None)
    private.listen_on_loopback()
    assert services.get_node_ip_address() in ("127.0.0.1", "::1")


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "3.0.0"])
def test_another_version_of_ray_is_refused_and_the_required_one_is_named(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda package: version)
    monkeypatch.delitem(sys.modules, "adapt.ray.private")
    with pytest.raises(ClusterError, match=rf"not tested with Ray {version}") as caught:
        importlib.import_module("adapt.ray.private")
    assert private.TESTED in caught.value.fix


def test_a_missing_private_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(packaging, "_dir_travel")
    monkeypatch.delitem(sys.modules, "adapt.ray.private")
    with pytest.raises(ClusterError, match=r"_dir_travel") as caught:
        importlib.import_module("adapt.ray.private")
    assert private.TESTED in caught.value.fix


def test_the_policy_has_all_methods_that_ray_trains_controller_calls() -> None:
    from adapt.train.elastic_policy import ElasticPolicy

    asked = {"make_decision_for_non_running_worker_group", "make_decision_for_running_worker_group"}
    assert ScalingPolicy.__abstractmethods__ == {*asked, "_get_num_workers_for_resource_request"}
    assert issubclass(ScalingPolicy, ControllerCallback)
    own = {name for name in vars(ElasticPolicy) if name.startswith(("after_", "make_"))}
    assert own == {*asked, "after_controller_start", "after_controller_state_update"}
    for name in own:
        assert parameters(getattr(ElasticPolicy, name)) == parameters(getattr(ScalingPolicy, name)), name
    assert parameters(ScalingPolicy._maybe_send_resource_request) == []
    assert parameters(ScalingPolicy.__init__) == ["scaling_config"]


def test_decisions_states_and_errors_have_what_the_policy_reads() -> None:
    decision = ResizeDecision(num_workers=2, resources_per_worker={"CPU": 1.0})
    assert isinstance(decision, ScalingDecision)
    assert isinstance(NoopDecision(), ScalingDecision)
    for state in (ReschedulingState, RestartingState):
        assert "training_failed_error" in parameters(state)
    assert RestartingState(training_failed_error="why").training_failed_error == "why"  # type: ignore[arg-type]
    error = PreemptionError(PreemptionInfo(None, {"b": [1]}), drain_timed_out=True)
    assert isinstance(error, Exception)


def test_the_resources_of_a_worker_are_read() -> None:
    scaling = ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 2.0})
    assert private.worker_resources(scaling) == {"CPU": 2.0}
    assert (scaling.min_workers, scaling.max_workers) == (1, 3)  # type: ignore[attr-defined]


def test_ray_trains_own_policy_is_replaced() -> None:
    assert "scaling_policy=" in inspect.getsource(DataParallelTrainer.fit)
    assert parameters(DataParallelTrainer._initialize_and_run_controller) == ["controller_init_kwargs"]
    trainer = SimpleNamespace(_initialize_and_run_controller=lambda **given: given)
    policy: Any = object()
    given = private.with_policy(trainer, policy)._initialize_and_run_controller(scaling_policy="Ray's", callbacks=[])
    assert given == {"scaling_policy": policy, "callbacks": []}


@pytest.mark.usefixtures("ray_cluster")
def test_free_resources_and_leaving_nodes_are_read_from_a_real_ray() -> None:
    (node,) = [each["NodeID"] for each in ray.nodes() if each["Alive"]]
    assert private.free_resources()[node]["CPU"] <= 2
    assert private.leaving_nodes() == set()
    assert private.autoscaler_limits() == []


def test_limits_of_the_autoscaler_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [
        autoscaler_pb2.NodeGroupConfig(resources={"CPU": 8}, max_count=3),
        autoscaler_pb2.NodeGroupConfig(resources={"CPU": 4, "GPU": 1}, max_count=-1),
    ]
    told = autoscaler_pb2.ClusterConfig(node_group_configs=groups)
    monkeypatch.setattr(GlobalState, "get_cluster_config", lambda self: told)
    assert private.autoscaler_limits() == [({"CPU": 8}, 3), ({"CPU": 4, "GPU": 1}, sys.maxsize)]


def test_the_files_sent_are_those_that_ray_packs(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for name in ("a.py", "runs/large", "data/large", "git/large", "deep/b.py", "deep/no/c.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("text")
    (root / ".rayignore").write_text("data/\n")
    (root / ".gitignore").write_text("git/\n")
    (root / "deep" / ".gitignore").write_text("no/\n")
    sent = sorted(path.relative_to(root).as_posix() for path in private.files_sent(root, ["/runs/"]))
    assert sent == [".gitignore", ".rayignore", "a.py", "deep/.gitignore", "deep/b.py"]
    packed = tmp_path / "packed.zip"
    packaging.create_package(str(root), packed, include_gitignore=True, excludes=["/runs/"])
    names = {name for name in zipfile.ZipFile(packed).namelist() if not name.endswith("/")}
    assert names == set(sent)


@pytest.mark.parametrize(("ignores", "count"), [("0", 2), ("1", 3)])
def test_ray_can_be_configured_to_send_files_that_git_ignores(
    ignores: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", ignores)
    for name, text in ((".gitignore", "large\n"), ("large", ""), ("small", "")):
        (tmp_path / name).write_text(text)
    assert len(list(private.files_sent(tmp_path, []))) == count


def test_the_job_client_has_the_method_that_version_at_calls() -> None:
    assert parameters(JobSubmissionClient._do_request)[:2] == ["method", "endpoint"]
