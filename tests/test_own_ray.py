"""What a Ray of our own consists of."""

import os

import pytest

from adapt.config import ResourcesConfig
from adapt.own_data import OWN_RAY
from adapt.runtime import connect, data_settings


@pytest.mark.usefixtures("ray_cluster")
def test_a_ray_of_our_own_has_no_process_without_a_use_for_it() -> None:
    from ray._private.worker import _global_node

    processes = {*_global_node.all_processes}
    assert {"gcs_server", "raylet"} <= processes
    assert {"log_monitor", "monitor", "dashboard"} & processes == set()


@pytest.mark.usefixtures("ray_cluster")
def test_data_of_a_ray_of_our_own_start_no_actor() -> None:
    import ray
    from ray.util import list_named_actors

    actors = {"AutoscalingCoordinator", "datasets_stats_actor"}

    def found() -> list[dict[str, str]]:
        return [each for each in list_named_actors(all_namespaces=True) if each["name"] in actors]

    for each in found():  # of data without our settings
        ray.kill(ray.get_actor(each["name"], each["namespace"]))
    with data_settings(2**20):
        rows = ray.data.from_items(list(range(100)), override_num_blocks=10).map(lambda row: {"half": row["item"] / 2})
        assert [row["half"] for row in rows.iter_rows()] == [number / 2 for number in range(100)]
    assert found() == []


def test_a_cluster_that_is_joined_is_none_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a process that one of our own has started: there, data ask for nodes."""
    monkeypatch.setenv(OWN_RAY, "1")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    connect(ResourcesConfig(address="10.0.0.1:6379"))
    assert OWN_RAY not in os.environ
