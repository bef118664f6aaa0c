"""Nodes for Ray's autoscaler on this machine, in place of a cloud's. The autoscaler loads this, in its own process."""

import os
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import STATUS_UP_TO_DATE, TAG_RAY_NODE_STATUS, TAG_RAY_USER_NODE_TYPE

from cluster.here.node import Node

FIRST = 100
"""The number of the first, so that addresses are not those of nodes that are started by hand."""


class GroupsOfProcesses(FakeMultiNodeProvider):
    """Ray's own provider for trying out the autoscaler, but that nodes have folders and addresses of their own."""

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
