"""What forks of `tests.forks.server` find imported: what drivers, ranks and Ray's workers use."""

import gc
import importlib
import os
from unittest import mock

import ray.actor

from tests.forks.server import READ_WHEN_STARTED

MODULES = [
    "ray._private.services",
    "ray._private.workers.default_worker",
    "ray.data",
    "ray.train.torch",
    "ray.train.v2._internal.execution.controller",
    "adapt.job.job_run",
    "adapt.train.worker",
    "tests.forks.process",
    "tests.train.toy",
]


class ClassID(ray.ActorClassID):
    """Drawn by the system. Once the generator of Ray has drawn, forks go on with its state, and draw the same IDs."""

    @classmethod
    def from_random(cls) -> ray.ActorClassID:
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


with mock.patch.object(ray.actor, "ActorClassID", ClassID):  # some modules define actors
    for module in MODULES:
        importlib.import_module(module)
for name in READ_WHEN_STARTED:  # each fork has an environment of its own
    os.environ.pop(name, None)
gc.freeze()
