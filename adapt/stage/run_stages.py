"""Runs the stages of a chain, connected to Ray if any stage has to run."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.config import ResourcesConfig
from adapt.ray.runtime import address_of, connect, totals
from adapt.runner import Record, Stage, Store, ensure_all
from adapt.runner.ensure import check_ahead, unfinished

ON_A_CLUSTER = 16
"""Stages at once, where the cluster itself holds back what it has no room for."""


def run_stages(stages: Sequence[Stage[Any]], store: Store, resources: ResourcesConfig) -> list[Record]:
    """The records of some stages, after running what is not finished, side by side as far as there is room.

    Raises:
        AdaptError: as `adapt.runner.parallel.ensure_all`.
    """
    waiting = unfinished(stages, store)[0]
    if not waiting:
        return ensure_all(stages, store, None, 1)
    check_ahead(waiting, store)
    return ensure_all(stages, store, *room(resources, len(stages)))


def room(resources: ResourcesConfig, stages: int) -> tuple[Mapping[str, float] | None, int]:
    """Connects to Ray. What stages that run at once may need together (None for no limit), and how many may run.

    Args:
        resources: where the work runs.
        stages: that are to be finished.
    """
    connect(resources)
    joined = address_of(resources) is not None
    most = resources.stages_at_once or (ON_A_CLUSTER if joined else stages + ON_A_CLUSTER)
    return (None if joined else totals()), most
