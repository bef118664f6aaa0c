"""Tests that domains start from the interpolation or the mean of models, computed here from their weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import Config, TrainingConfig
from adapt.merge.merger import DECAYS
from adapt.method.base import Setting
from adapt.method.weight_means import (
    AverageOptions,
    Interpolated,
    InterpolateOptions,
    WindowAverage,
    window_weights,
)
from adapt.support.errors import ModelError
from adapt.terminal.console import say_once
from tests.method.trained import BEFORE, START, loaded
from tests.train import toy


def merged(state: dict[str, Any], **options: Any) -> dict[str, Any]:
    method = Interpolated(InterpolateOptions(**options))
    method.prepare_model(toy.model(), Setting(anchor=START, base=BEFORE, load=loaded))
    return method.merge(state)


def trained() -> dict[str, Any]:
    return {name: each + 1 for name, each in toy.model().state_dict().items()}


@pytest.mark.parametrize(("towards", "folder"), [("before", START), ("base", BEFORE)])
def test_weights_are_interpolated(towards: str, folder: Path) -> None:
    other, state = loaded(folder).state_dict(), trained()
    for name, found in merged(state, share=0.3, towards=towards).items():
        if not found.is_floating_point():
            assert torch.equal(found, state[name])
            continue
        expected = 0.7 * other[name].double().numpy() + 0.3 * state[name].double().numpy()
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_shares_0_and_1_give_the_two_models() -> None:
    state, start = trained(), toy.model().state_dict()
    assert merged(state, share=1.0) is state
    assert all(torch.equal(each, start[name]) for name, each in merged(state, share=0.0).items())


def test_a_base_of_another_vocabulary_is_refused() -> None:
    """Checks that `prepare_model`, which runs before training, refuses a base model with another vocabulary."""
    method, larger = Interpolated(InterpolateOptions(towards="base")), toy.model()
    larger.cls.predictions.bias = torch.nn.Parameter(torch.zeros(99))
    with pytest.raises(ModelError, match=r"it has no cls.predictions.bias of shape \[99\]"):
        method.prepare_model(larger, Setting(anchor=START, base=BEFORE, load=loaded))


def test_merge_returns_nothing_on_ranks_without_weights() -> None:
    assert merged({}) == {}


class Moving:
    """Replaces the training engine. The model consists of two numbers and a counter that change with each step."""

    step = 0

    def full_state(self) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor([float(self.step), float(self.step) ** 2]), "count": torch.tensor(self.step)}


def averaged(steps: int, until: int | None = None, resumed_at: int | None = None, **options: Any) -> Any:
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


def test_the_mean_equals_a_training_with_decayed_updates() -> None:
    """Compares a mean of checkpoints with a run whose later updates are scaled by a linearly decayed learning rate."""
    places = sorted(window_weights(100, AverageOptions(window=0.4, points=5)))
    assert places == [60, 70, 80, 90, 100]
    expected = torch.tensor([60.0, 3600.0])
    for number in range(1, 5):
        update = torch.tensor([float(places[number]) ** power - float(places[number - 1]) ** power for power in (1, 2)])
        expected = expected + DECAYS["linear"](number / 5) * update
    found = averaged(100, window=0.4, points=5)
    torch.testing.assert_close(found["w"], expected)
    assert found["count"] == 100


def test_a_short_window_has_fewer_points_and_includes_the_last_step() -> None:
    weights = window_weights(4, AverageOptions(window=0.5, points=10))
    assert sorted(weights) == [2, 3, 4]
    assert sum(weights.values()) == pytest.approx(1)
    assert window_weights(7, AverageOptions(points=1)) == {7: 1.0}


def test_a_resumed_training_gives_the_same_mean() -> None:
    options: dict[str, Any] = {"window": 0.5, "points": 6}
    whole = averaged(20, **options)
    for place in (5, 11, 15):
        assert torch.equal(averaged(20, resumed_at=place, **options)["w"], whole["w"])


def test_a_training_that_ends_early_gives_the_mean_so_far() -> None:
    found = averaged(10, until=7, window=0.5, points=6)  # the planned mean is over steps 5 to 10
    torch.testing.assert_close(found["w"], torch.tensor([6.0, (25 + 36 + 49) / 3]))
    assert averaged(10, until=3, window=0.5)["w"].tolist() == [3.0, 9.0]


@pytest.mark.parametrize(
    ("schedule", "floor", "warnings"), [("wsd", 0.0, 1), ("cosine", 0.1, 1), ("constant", 0.0, 0), ("linear", 1.0, 0)]
)
def test_a_falling_learning_rate_is_warned_of_once(
    schedule: Any, floor: float, warnings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    say_once.cache_clear()
    config = Config(training=TrainingConfig(schedule=schedule, floor_fraction=floor))
    for _ in range(2):
        WindowAverage(AverageOptions()).check(config, Path())
    assert capsys.readouterr().err.count(f"warning: training.schedule {schedule} lowers") == warnings


def test_a_mean_is_merged_on_the_rank_with_weights() -> None:
    method = WindowAverage(AverageOptions())
    method.load_state({"total": 0.5, "sums": {}})
    assert method.merge({}) == {}
