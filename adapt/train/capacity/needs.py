"""What computing stages take of a machine while they run, so that what runs beside them does not slow them down.

On GPUs a stage takes those, and a core for each process. Without them it computes on all cores that it does not share
(`resources.trainings_per_machine`), and takes them. A joined cluster gives what processes ask for, by itself.
"""

import os

from adapt.config import ResourcesConfig, most_of
from adapt.train.capacity.device import has_gpu


def training_needs(resources: ResourcesConfig) -> dict[str, float]:
    """What a training, or what else computes on all workers, takes if as many as may come: {"CPU": 4, "GPU": 4}."""
    workers, gpus = most_of(resources.workers), _gpus(resources)
    return _needs(resources, workers * resources.cpus_per_worker, workers * gpus)


def task_needs(resources: ResourcesConfig) -> dict[str, float]:
    """What a task on one device, or on a part of one, takes."""
    return _needs(resources, 1, min(1.0, _gpus(resources)))


def _gpus(resources: ResourcesConfig) -> float:
    return float(has_gpu()) if resources.gpus_per_worker is None else resources.gpus_per_worker


def _needs(resources: ResourcesConfig, cpus: float, gpus: float) -> dict[str, float]:
    if gpus:
        return {"CPU": cpus, "GPU": gpus}
    return {"CPU": max(cpus, len(os.sched_getaffinity(0)) / resources.trainings)}
