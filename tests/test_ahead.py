"""Modules are imported before they are needed, and what cannot be imported is left to who needs it."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adapt import ahead
from adapt.runner import Stage
from adapt.stage.finetune import Finetune
from adapt.stage.scores import Scores
from adapt.stage.task import PrepareTask
from adapt.stage.train import Train

SELDOM = "pydoc_data.topics"
"""A module that nothing of ours imports."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "imported_ahead.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "imported_ahead"
    sys.modules.pop("imported_ahead", None)


def test_the_rest_is_imported_though_one_is_missing(module: str) -> None:
    ahead.import_meanwhile(["no_such_module", module])
    deadline = time.monotonic() + 60
    while module not in sys.modules and time.monotonic() < deadline:
        time.sleep(0.01)
    assert module in sys.modules


@pytest.mark.usefixtures("ray_cluster")
def test_work_comes_to_the_idle_process_that_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.delitem(sys.modules, SELDOM, raising=False)  # a test before this one may have looked at all modules

    def is_imported(name: str) -> bool:
        return name in sys.modules

    ahead.import_in_idle_processes([SELDOM], 1)
    ahead.await_idle_processes()
    assert ray.get(ray.remote(num_cpus=1)(is_imported).remote(SELDOM))
    assert not is_imported(SELDOM)


@pytest.mark.usefixtures("ray_cluster")
def test_stages_side_by_side_wait_each() -> None:
    ahead.import_in_idle_processes(["json"], 2)
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(ahead.await_idle_processes) for _ in range(50)]:
            each.result()


@pytest.mark.usefixtures("ray_cluster")
def test_what_an_earlier_ray_was_asked_is_not_waited_for() -> None:
    ahead.import_in_idle_processes(["json"], 1)
    ahead.import_in_idle_processes([], 0)
    assert not ahead._begun


@pytest.mark.parametrize("kind", [Finetune, PrepareTask, Scores, Train])
def test_what_stages_name_is_there_to_be_imported(kind: type[Stage[Any]]) -> None:
    """A wrong name would be passed over without a word."""
    names = [*kind.imports, *kind.imports_there]
    assert names
    assert all(importlib.util.find_spec(name) for name in names)
