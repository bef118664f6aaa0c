"""Ray Train's controller on a Ray of our own, in a process that waits idle.

Ray Train hands some variables on to its controller as a runtime environment, which the controller's actors have too. A
process that has one is always started anew, and by a second Python that sets it up. On a Ray of our own all processes
have these variables from us.
"""

from typing import Any

import ray
from ray.train.v2._internal.execution.controller import TrainController


def in_idle_processes(trainer: Any) -> Any:
    """A `TorchTrainer` whose controller has no runtime environment, before it is fitted. In place."""
    trainer._initialize_and_run_controller = _run_controller
    return trainer


def _run_controller(**given: Any) -> Any:
    """What a trainer's method of this name does, with its arguments."""
    controller: Any = ray.remote(num_cpus=0)(TrainController).remote(**given)
    ray.get(controller.run.remote())
    return ray.get(controller.get_result.remote())
