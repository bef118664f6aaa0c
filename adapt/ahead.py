"""Imports before they are needed: they take seconds, in which this process, or Ray, has other things to wait for."""

import importlib
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any

_begun: tuple[Any, ...] = ()
"""Tasks of Ray that import, begun last. Stages that run side by side look at it from threads of their own."""


def import_meanwhile(modules: Collection[str]) -> None:
    """Begins to import modules in a thread. Who needs one imports it too, and so waits for it, or gets its error."""
    threading.Thread(target=_import, args=(modules,), daemon=True).start()


def import_in_idle_processes(modules: Collection[str], processes: int) -> None:
    """Lets processes of a Ray of our own, which wait idle for work, begin to import modules that the work will import.

    On a machine with GPUs they do not: what is imported may look for GPUs, before it is known which a process gets.

    Args:
        modules: to import.
        processes: in so many.
    """
    import ray

    global _begun
    _begun = ()
    if modules and not ray.cluster_resources().get("GPU"):
        task: Any = ray.remote(num_cpus=0)(_import)
        _begun = tuple(task.remote(modules) for _ in range(processes))


def await_idle_processes() -> None:
    """Waits until what they import is imported. Work that came before would go to others, and import all once more."""
    import ray

    if begun := _begun:
        ray.wait(list(begun), num_returns=len(begun), fetch_local=False)


def _import(modules: Collection[str]) -> None:
    for module in modules:
        with suppress(Exception):  # who needs it will say so
            importlib.import_module(module)
