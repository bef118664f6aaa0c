"""Ray Train's controller on a Ray of our own: in a process that waits idle, and without actors that have no use there.

Ray Train hands some variables on to its controller as a runtime environment, which the controller's actors have too. A
process that has one is always started anew, and by a second Python that sets it up. On a Ray of our own all processes
have these variables from us. Three actors, each a process that takes a core for over a second while training starts,
serve what is not there: one shares out datasets, which our trainers are not given, one asks an autoscaler for nodes,
and one gives free what a dead controller has reserved. That one asks a dashboard whether the controller lives, and
where there is none may hold up the end of a training by 12 s; here the driver notices, and gives free.
"""

from typing import Any

import ray
from ray._private import state
from ray.core.generated.gcs_pb2 import PlacementGroupTableData  # type: ignore[attr-defined]  # made when it is imported
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.util.placement_group import PlacementGroup, remove_placement_group

USELESS = DatasetsCallback, PlacementGroupCleanerCallback
"""What starts actors that have no use."""


class AsManyAsAsked(FixedScalingPolicy):
    """A fixed number of workers, of which no autoscaler is told."""

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Registers nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass


def in_idle_processes(trainer: Any) -> Any:
    """A `TorchTrainer` whose controller has no runtime environment, before it is fitted. In place."""
    trainer._initialize_and_run_controller = _run_controller
    return trainer


def _run_controller(**given: Any) -> Any:
    """What a trainer's method of this name does, with its arguments."""
    if type(given["scaling_policy"]) is FixedScalingPolicy:
        given["scaling_policy"] = AsManyAsAsked(given["scaling_policy"].scaling_config)
    given["callbacks"] = [each for each in given["callbacks"] if not isinstance(each, USELESS)]
    controller: Any = ray.remote(num_cpus=0)(TrainController).remote(**given)
    try:
        ray.get(controller.run.remote())
    except ray.exceptions.RayActorError:
        _free(controller)
        raise
    return ray.get(controller.get_result.remote())


def _free(controller: Any) -> None:
    """Gives free what a dead controller has reserved for its workers, which Ray keeps for as long as the job lives."""
    for serialized in state.state._connect_and_get_accessor().get_placement_group_table():
        known = PlacementGroupTableData.FromString(serialized)
        if known.creator_actor_id == controller._actor_id.binary():
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(known.placement_group_id)))
