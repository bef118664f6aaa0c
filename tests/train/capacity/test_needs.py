"""What computing stages take of a machine."""

import os
from typing import Any

import pytest

from adapt.config import ResourcesConfig
from adapt.train.capacity import needs
from adapt.train.capacity.needs import task_needs, training_needs


@pytest.mark.parametrize(
    ("resources", "has_gpu", "training", "task"),
    [
        ({}, False, {"CPU": 8}, {"CPU": 8}),  # it computes on all cores
        ({"workers": 2}, False, {"CPU": 8}, {"CPU": 8}),
        ({"workers": 2, "trainings_per_machine": 2}, False, {"CPU": 4}, {"CPU": 4}),
        ({"workers": (2, 6), "trainings_per_machine": 4}, False, {"CPU": 6}, {"CPU": 2}),
        ({"workers": 3, "cpus_per_worker": 4.0}, False, {"CPU": 12}, {"CPU": 8}),
        ({"workers": 2, "cpus_per_worker": 4.0}, True, {"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 1}),
        ({"workers": 2, "gpus_per_worker": 0.5}, True, {"CPU": 2, "GPU": 1}, {"CPU": 1, "GPU": 0.5}),
        ({"workers": 2, "gpus_per_worker": 2.0}, False, {"CPU": 2, "GPU": 4}, {"CPU": 1, "GPU": 1}),  # a cluster's
        ({"gpus_per_worker": 0.0}, True, {"CPU": 8}, {"CPU": 8}),
    ],
)
def test_gpus_or_the_cores_that_it_computes_on(
    resources: dict[str, Any],
    has_gpu: bool,
    training: dict[str, float],
    task: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setattr(needs, "has_gpu", lambda: has_gpu)
    assert training_needs(ResourcesConfig(**resources)) == training
    assert task_needs(ResourcesConfig(**resources)) == task
