"""Imports the modules of drivers, ranks and Ray's workers, for forks of `tests.forks.server`.

Most processes of a job import the last modules of the list when they first need them. These imports take 1 to 2 s per
process.
"""

import gc
import importlib
import os
from unittest import mock

import ray.actor

from tests.forks.server import READ_WHEN_STARTED

MODULES = [
    "ray._private.services",
    "ray._private.workers.default_worker",
    "ray.dashboard.agent",
    "ray.data",
    "ray.train.torch",
    "ray.train.v2._internal.execution.controller",
    "adapt.job.job_run",
    "adapt.train.ray_train",
    "adapt.train.worker",
    "adapt.finetune.ray_task",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # this module compiles a function, which loads torch's compiler
    "pyarrow.json",
    "pydantic.v1",
    "ray.data.extensions",
    "ray.tune",
    "scipy.stats",
    "sklearn.linear_model",
    "torch.utils.tensorboard",
    "tests.forks.process",
    "tests.train.toy",
]


class ClassID(ray.ActorClassID):
    """Draws ids of actor classes from the operating system.

    Ray's own generator would give all forks the same ids if it was used before the fork.
    """

    @classmethod
    def from_random(cls) -> ray.ActorClassID:
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


with mock.patch.object(ray.actor, "ActorClassID", ClassID):  # imports of modules that define actors draw ids
    for module in MODULES:
        importlib.import_module(module)
for name in READ_WHEN_STARTED:  # each fork sets these variables itself
    os.environ.pop(name, None)
gc.freeze()
