"""Lets Ray Data, on a Ray of our own, do without two processes that it would wait for.

Before it reads anything, Ray Data starts an actor that counts for the dashboard, and asks it for the dataset's number;
and another that shares the cluster out among datasets and asks for more nodes, before whose answer no task may start.
Each takes a second of a core to come up. A Ray of our own has no dashboard and no nodes to come.
"""

import os
from typing import Any
from uuid import uuid4

OWN_RAY = "DONTSTOP_OWN_RAY"
"""The variable of processes of a Ray of our own: the folder of that Ray, which only this user may enter."""
FOLDER_PREFIX = "dontstop-"
"""How the names of these folders begin."""
_DONE = "_dontstop"


def keep_data_here() -> None:
    """Does so from now on, in this process, if its Ray is one of our own."""
    if OWN_RAY not in os.environ:
        return
    from ray.data._internal.execution import streaming_executor
    from ray.data._internal.stats import _StatsManager

    if hasattr(_StatsManager, _DONE):
        return
    for name in ("update_execution_metrics", "update_iteration_metrics", "register_dataset_to_stats_actor"):
        _replace(_StatsManager, name, staticmethod(_nothing))
    _replace(_StatsManager, "gen_dataset_id_from_stats_actor", staticmethod(lambda: uuid4().hex))
    _replace(streaming_executor, "create_cluster_autoscaler", _ThisMachine)
    setattr(_StatsManager, _DONE, True)


def _replace(owner: Any, name: str, value: Any) -> None:
    getattr(owner, name)  # in another release of Ray it may be called otherwise
    setattr(owner, name, value)


def _nothing(*_: Any, **__: Any) -> None:
    pass


class _ThisMachine:
    """Stands in for what asks for nodes: Ray Data may use what there is."""

    def __init__(self, *_: Any, **__: Any) -> None:
        import ray
        from ray.data import ExecutionResources

        self._all = ExecutionResources.from_resource_dict(ray.cluster_resources())

    def try_trigger_scaling(self) -> None:
        """There are no nodes to come."""

    def on_executor_shutdown(self) -> None:
        """Nothing was asked for."""

    def get_total_resources(self) -> Any:
        """All of the machine. Ray itself holds tasks back for which it has no room."""
        return self._all
