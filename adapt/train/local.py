"""Ray Train's controller on a Ray of our own: in a process that waits idle, and without actors that have no use there.

Ray Train hands some variables on to its controller as a runtime environment, which the controller's actors have too. A
process that has one is always started anew, and by a second Python that sets it up. On a Ray of our own all processes
have these variables from us. Three actors, each a process that takes a core for over a second while training starts,
serve what is not there: one shares out datasets, which our trainers are not given, one asks an autoscaler for nodes,
and one gives free what a dead controller has reserved, as Ray does anyway. That one asks a dashboard whether the
controller lives, and where there is none may hold up the end of a training by 12 s.
"""

from typing import Any

import ray
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy

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
    ray.get(controller.run.remote())
    return ray.get(controller.get_result.remote())
