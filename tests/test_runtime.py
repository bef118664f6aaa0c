"""What a Ray of our own consists of."""

import pytest


@pytest.mark.usefixtures("ray_cluster")
def test_a_ray_of_our_own_has_no_process_that_reads_its_logs_or_looks_for_nodes() -> None:
    from ray._private.worker import _global_node

    processes = {*_global_node.all_processes}
    assert {"gcs_server", "raylet"} <= processes
    assert {"log_monitor", "monitor"} & processes == set()
