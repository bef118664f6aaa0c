"""Starts a Ray of our own, on this machine alone, without what a job there has no use for."""

import atexit
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def start_ray() -> None:
    """Starts it, and joins it. It ends with this process."""
    import ray

    with _needless_left_out():
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    atexit.register(ray.shutdown)  # before Ray's own, which waits half a second for output that is not shown here


@contextmanager
def _needless_left_out() -> Iterator[None]:
    """Lets Ray start without what a Ray of our own has no use for, though it has no switch for it here.

    Three processes of Python: one reads along with all log files, to show them here; one looks for nodes to start; one
    is what a dashboard is without its modules. And the server of a fourth, which the dashboard asks: where a second Ray
    runs on this machine it waits 3 s for a port. Ray leaves the server out where it cannot import what that needs.
    """
    from ray._private import utils
    from ray._private.node import Node

    def nothing(*_: Any, **__: Any) -> None:
        pass

    left_out: dict[tuple[Any, str], Any] = {
        **{(Node, name): nothing for name in ("start_log_monitor", "start_monitor", "start_api_server")},
        (utils, "get_dashboard_dependency_error"): lambda: ImportError("not needed"),
    }
    usual = {place: getattr(*place) for place in left_out}
    try:
        for (owner, name), value in left_out.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in usual.items():
            setattr(owner, name, value)
