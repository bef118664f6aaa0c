"""Runs the stages of a chain, connected to Ray if any stage has to run."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.config import ResourcesConfig
from adapt.ray.runtime import address_of, connect, totals
from adapt.runner import Record, Stage, Store, ensure_all
from adapt.runner.ensure import check_ahead, unfinished

ON_A_CLUSTER = 16
"""Number of stages that are started at once on a cluster. The cluster delays their tasks until resources are free."""


def run_stages(stages: Sequence[Stage[Any]], store: Store, resources: ResourcesConfig) -> list[Record]:
    """Runs unfinished stages, in parallel if resources suffice, and returns the records of all.

    Raises:
        AdaptError: for the reasons given at `adapt.runner.parallel.ensure_all`.
    """
    waiting = unfinished(stages, store)[0]
    if not waiting:
        return ensure_all(stages, store, None, 1)
    check_ahead(waiting, store)
    return ensure_all(stages, store, *room(resources, len(stages)))


def room(resources: ResourcesConfig, stages: int) -> tuple[Mapping[str, float] | None, int]:
    """Connects to Ray, and returns the resources for stages that run at once, and the largest number of such stages.

    Args:
      resources: where the work runs. On a cluster, the returned resources are None, which sets no limit.
      stages: number of stages to finish.
    """
    connect(resources)
    joined = address_of(resources) is not None
    most = resources.stages_at_once or (ON_A_CLUSTER if joined else stages + ON_A_CLUSTER)
    return (None if joined else totals()), most
