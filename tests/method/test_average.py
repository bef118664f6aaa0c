"""Tests the mean of weights over a window of steps: the averaged steps, their shares, and the mean."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, TrainingConfig
from adapt.merge.merger import DECAYS
from adapt.method.average import AverageOptions, WindowAverage, _warn_of_decay, window_weights
from adapt.method.base import Setting


class Moving:
    """Replaces an engine: its model has two numbers and a counter, which change with each step."""

    step = 0

    def full_state(self) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor([float(self.step), float(self.step) ** 2]), "count": torch.tensor(self.step)}


def trained(steps: int, until: int | None = None, resumed_at: int | None = None, **options: Any) -> Any:
    engine, setting = Moving(), Setting(length=steps)

    def begun() -> WindowAverage:
        method = WindowAverage(AverageOptions(**options))
        method.prepare_model(None, setting)
        return method

    method = begun()
    for step in range(until or steps):
        if step == resumed_at:
            before, method = method, begun()
            if state := before.state():
                method.load_state(state)
        engine.step = step + 1
        method.after_step(engine, step)
    return method.merge(engine.full_state())


@pytest.mark.parametrize("decay", DECAYS)
def test_the_mean_equals_a_training_with_decayed_updates(decay: str) -> None:
    """Compares the mean with a training whose updates after the first point are scaled by the decayed learning rate."""
    places = sorted(window_weights(100, AverageOptions(window=0.4, points=5, decay=decay)))  # type: ignore[arg-type]
    assert places == [60, 70, 80, 90, 100]
    expected = torch.tensor([60.0, 3600.0])
    for number in range(1, 5):
        update = torch.tensor([float(places[number]) ** power - float(places[number - 1]) ** power for power in (1, 2)])
        expected = expected + DECAYS[decay](number / 5) * update
    found = trained(100, window=0.4, points=5, decay=decay)
    torch.testing.assert_close(found["w"], expected)
    assert found["count"] == 100


def test_a_short_window_has_fewer_points_and_includes_the_last_step() -> None:
    weights = window_weights(4, AverageOptions(window=0.5, points=10))
    assert sorted(weights) == [2, 3, 4]
    assert sum(weights.values()) == pytest.approx(1)
    assert window_weights(7, AverageOptions(points=1)) == {7: 1.0}


def test_a_resumed_training_gives_the_same_mean() -> None:
    options: dict[str, Any] = {"window": 0.5, "points": 6, "decay": "cosine"}
    whole = trained(20, **options)
    for place in (5, 11, 15):
        assert torch.equal(trained(20, resumed_at=place, **options)["w"], whole["w"])


def test_a_training_that_ends_early_gives_the_mean_so_far() -> None:
    found = trained(10, until=7, window=0.5, points=6)  # the points are steps 5 to 10
    torch.testing.assert_close(found["w"], torch.tensor([6.0, (25 + 36 + 49) / 3]))
    assert trained(10, until=3, window=0.5)["w"].tolist() == [3.0, 9.0]


def test_cut_short_says_how_much_of_the_window_was_reached() -> None:
    method = WindowAverage(AverageOptions(window=0.5, points=6))
    method.prepare_model(None, Setting(length=10))  # the points are steps 5 to 10
    assert method.cut_short(10) == ""
    assert "over 3 of its 6 points" in method.cut_short(7)
    assert "which begins after step 5, was not reached" in method.cut_short(4)


@pytest.mark.parametrize(
    ("schedule", "floor", "warnings"), [("wsd", 0.0, 1), ("cosine", 0.1, 1), ("constant", 0.0, 0), ("linear", 1.0, 0)]
)
def test_a_falling_learning_rate_is_warned_of_once(
    schedule: Any, floor: float, warnings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _warn_of_decay.cache_clear()
    config = Config(training=TrainingConfig(schedule=schedule, floor_fraction=floor))
    for _ in range(2):
        WindowAverage(AverageOptions()).check(config, Path())
    assert capsys.readouterr().err.count(f"warning: training.schedule {schedule} lowers") == warnings


def test_merge_returns_nothing_on_ranks_without_weights() -> None:
    method = WindowAverage(AverageOptions())
    method.load_state({"total": 0.5, "sums": {}})
    assert method.merge({}) == {}
