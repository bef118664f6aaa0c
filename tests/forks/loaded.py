"""Imports the modules of drivers, ranks and Ray's workers, for forks of `tests.forks.server`."""

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
    "adapt.train.worker",
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


with mock.patch.object(ray.actor, "ActorClassID", ClassID):  # some modules define actors, which draw an id
    for module in MODULES:
        importlib.import_module(module)
for name in READ_WHEN_STARTED:  # each fork sets its own values
    os.environ.pop(name, None)
gc.freeze()
