"""Where trials run: side by side on this machine; those that a cluster can never hold are refused before the first."""

import os
from dataclasses import replace
from typing import Any

from adapt.config import Config, most_of
from adapt.errors import ClusterError
from adapt.runner import Stage
from adapt.runner.reach import everything
from adapt.stage.context import Context
from adapt.stage.finetune import Finetune
from adapt.stage.train import Train
from adapt.train.capacity.device import has_gpu
from adapt.train.capacity.forecast import may_fit
from adapt.tuning.trial import Trial


def side_by_side(context: Context) -> Context:
    """The same, on a Ray of our own with as many trainings on the machine as trials are under way at once.

    A small training computes less than it starts, and that on one core: two take little longer than one. Where the
    machine has not the memory for all, they are fewer: one that is ended for want of it begins again.

    Args:
        context: of a trial.
    """
    from adapt.ray.runtime import address_of

    config, resources = context.config, context.config.resources
    if resources.trainings_per_machine or address_of(resources):
        return context
    cores, each = len(os.sched_getaffinity(0)), most_of(resources.workers) * resources.cpus_per_worker
    most = max(1, min(config.tune.at_once, int(cores / each)))
    model = context.start.pretrained.model
    on_gpu = has_gpu() and resources.gpus_per_worker != 0  # whose memory they do not share
    shared = [
        replace(config, resources=replace(resources, trainings_per_machine=trainings))
        for trainings in range(most, 0, -1)
    ]
    return context.configured(next((tried for tried in shared if on_gpu or may_fit(tried, model)), shared[-1]))


def check_place(config: Config, trial: Trial) -> None:
    """Makes sure that the workers of a training, and a run of fine-tuning, can be placed.

    Args:
        config: of the search.
        trial: one of its trials; they differ in nothing that takes more room.

    Raises:
        ClusterError: they cannot; says what the cluster has room for.
    """
    from adapt.ray.runtime import await_resources

    stages: list[Stage[Any]] = everything([trial])
    if any(isinstance(stage, Train) for stage in stages):
        await_resources(config.resources)
    if not any(isinstance(stage, Finetune) for stage in stages):
        return
    cpus, gpus = config.finetune.cpus_per_seed, config.finetune.gpus_per_seed
    try:
        await_resources(replace(config.resources, workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus))
    except ClusterError as error:
        raise ClusterError(error.what, "lower finetune.cpus_per_seed or finetune.gpus_per_seed") from error
