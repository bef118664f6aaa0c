"""Lets tests score models in the test's own process, without Ray."""

import pytest

from adapt.evaluate import evaluation_task
from adapt.evaluate.benchmark import harness_tasks, mteb_tasks


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evaluation_task, harness_tasks, mteb_tasks):
        monkeypatch.setattr(module, "hide_unreserved_gpus", lambda: None)
