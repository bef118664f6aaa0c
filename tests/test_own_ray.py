"""What a Ray of our own consists of."""

import pytest


@pytest.mark.usefixtures("ray_cluster")
def test_a_ray_of_our_own_has_no_process_without_a_use_for_it() -> None:
    from ray._private.worker import _global_node

    processes = {*_global_node.all_processes}
    assert {"gcs_server", "raylet"} <= processes
    assert {"log_monitor", "monitor", "dashboard"} & processes == set()
