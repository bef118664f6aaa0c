"""Gauges for Prometheus, and the dashboard that draws them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adapt.train.tracking import ray_metrics
from adapt.train.tracking.cores import CORE_WAIT
from adapt.train.tracking.ray_metrics import RayMetrics, gauge_name
from adapt.train.tracking.watch import PARTS

DASHBOARD = json.loads((Path(__file__).parents[3] / "cluster" / "grafana.json").read_text())


class Gauge:
    """Ray's, without Ray."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name, self.tag_keys, self.values = name, tag_keys, list[tuple[float, dict[str, str]]]()

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == set(self.tag_keys)
        self.values.append((value, tags))


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[str, Gauge]:
    made: dict[str, Gauge] = {}
    monkeypatch.setattr("ray.util.metrics.Gauge", lambda *given: made.setdefault(given[0], Gauge(*given)))
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    return made


def test_numbers_of_a_report_become_gauges(gauges: dict[str, Gauge]) -> None:
    tracker = RayMetrics("cs", "0123456789abcdef" * 4)
    tracker.log({"step": 1, "loss": 3.5, "note": "x", "is_last": False, "loss of mlm": 2.0}, 1)
    tracker.log({"step": 2, "loss": 2.5}, 2)
    assert {name: [value for value, _ in gauge.values] for name, gauge in gauges.items()} == {
        "dontstop_train_step": [1, 2],
        "dontstop_train_loss": [3.5, 2.5],
        "dontstop_train_loss_of_mlm": [2.0],
    }
    assert gauges["dontstop_train_loss"].values[0][1] == {"name": "cs", "key": "0123456789abcdef"}


def test_without_ray_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    RayMetrics("cs", "0" * 64).log({"loss": 1.0}, 1)


def test_the_dashboard_draws_what_trainings_report() -> None:
    drawn: set[str] = set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (name, labels) = re.fullmatch(r"(\w+)\{(.+)\}", target["expr"]).groups()  # type: ignore[union-attr]
            assert set(re.findall(r"(\w+)=~", labels)) == {"name", "SessionName"}
            drawn.add(name)
    parts = {key for name, (key, _) in PARTS.items() if name not in ("NPMI", "best", "texts")}
    told = {*parts, CORE_WAIT, "step", "eta_s", "gradient_norm", "plasticity"}
    assert drawn == {f"ray_{gauge_name(metric)}" for metric in told}
    assert ray_metrics.PREFIX in drawn.pop()


def test_the_dashboard_is_whole() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used == variables
