"""A training's metrics for the cluster's own monitoring: gauges of Ray, which Prometheus scrapes on every node."""

import re
from typing import Any

PREFIX = "dontstop_train_"
"""Ray puts `ray_` before it."""
TAGS = ("name", "key")


class RayMetrics:
    """A gauge for each number of a report, with the name of the run and the first digits of its key.

    Nothing happens where this process works with no Ray. A Ray that a job starts for itself collects none of it.
    """

    def __init__(self, name: str, key: str) -> None:
        import ray

        self._works = ray.is_initialized()
        self._tags = dict(zip(TAGS, (name, key[:16]), strict=True))
        self._gauges: dict[str, Any] = {}

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Sets the gauges to what a report says."""
        if self._works:
            for name, value in metrics.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._gauge(name).set(value, tags=self._tags)

    def close(self, failed: bool) -> None:
        """Does nothing: Ray forgets the gauges of a process that has ended."""

    def _gauge(self, name: str) -> Any:
        from ray.util.metrics import Gauge

        if name not in self._gauges:
            self._gauges[name] = Gauge(gauge_name(name), f"{name} of a training", TAGS)
        return self._gauges[name]


def gauge_name(metric: str) -> str:
    """The name under which a metric of a report is kept, in the letters that Prometheus takes."""
    return PREFIX + re.sub(r"\W", "_", metric)
