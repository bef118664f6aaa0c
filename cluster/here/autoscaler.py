"""Lets Ray's own autoscaler start nodes on this machine. Each node is a group of processes instead of a machine."""

import json
import os
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import STATUS_UP_TO_DATE, TAG_RAY_NODE_STATUS, TAG_RAY_USER_NODE_TYPE

from cluster.here.nodes import STORE_BYTES, Node
from cluster.here.processes import free_port

HEAD = "f" * 51 + "00000"
"""Id of the head node in the autoscaler. The nodes that the autoscaler starts get the ids that follow this id."""
PROVIDER = "cluster.here.autoscaler.GroupsOfProcesses"
IDLE_S = 10.0
"""Idle time after which the autoscaler stops a node [s]."""
_HEAD_TYPE = "ray.head.default"


def environment() -> dict[str, str]:
    """Returns the environment variables of a head node that runs version 2 of Ray's autoscaler, as in clouds."""
    version = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_NODE_TYPE_NAME": _HEAD_TYPE}
    here = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_METRIC_PORT": str(free_port())}
    return {**version, **here, "AUTOSCALER_UPDATE_INTERVAL_S": "1"}


def head_arguments(folder: Path, address: str, cpus: int, most: int) -> list[str]:
    """Writes a cluster file and returns the arguments of `ray start` for the head.

    Args:
        folder: folder for the file.
        address: address of the head.
        cpus: number of cores per node.
        most: maximum number of nodes that the autoscaler may start.
    """
    file = folder / "autoscaling.json"
    file.write_text(json.dumps(_content(address, cpus, most)))
    return ["--autoscaling-config", str(file)]


def _content(address: str, cpus: int, most: int) -> dict[str, Any]:
    own = {"use_node_id_as_ip": True, "disable_node_updaters": True, "disable_launch_config_check": True}
    # `memory` is left out. If it were set, Ray's autoscaler would keep starting nodes forever.
    worker = {"resources": {"CPU": cpus, "object_store_memory": STORE_BYTES}, "min_workers": 0, "max_workers": most}
    lists = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
    further = ("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude")
    return {
        "cluster_name": "here",
        "max_workers": most,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "launch_multiple": True,
            "head_node_id": HEAD,
            "gcs_address": address,
            **own,
        },
        "available_node_types": {
            _HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {**worker, "node_config": {}},
        },
        "head_node_type": _HEAD_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "rsync_filter": [],
        **{name: [] for name in (*lists, *further)},
    }


FIRST = 100
"""Number of the first autoscaled node.

Nodes that `Nodes.add` starts have smaller numbers, and therefore different addresses.
"""


class GroupsOfProcesses(FakeMultiNodeProvider):
    """Ray's provider for tests of the autoscaler, extended by a separate folder and address per node."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: dict[str, float], labels: Any
    ) -> None:
        with self.lock:
            name = self._next_hex_node_id()  # type: ignore[no-untyped-call]
            number = FIRST + self._next_node_id
            known = {
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": name,
                "RAY_CLOUD_INSTANCE_ID": name,
                "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE],
            }
            arguments = ["--address", str(self._gcs_address), "--num-cpus", str(int(resources["CPU"]))]
            node = Node(number, Path(os.environ["RAY_TMPDIR"]) / str(number), arguments, {**os.environ, **known})
            node.start()
            started: dict[str, Any] = {"tags": {**tags, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}, "node": node}
            self._nodes[name] = started

    def _terminate_node(self, node: dict[str, Any]) -> None:
        node["node"].lose()
