"""Turns: how long they are, what a training needs to go on, and who goes on."""

from dataclasses import replace
from typing import Any

import pytest

from adapt.config import Config, TrainingConfig, TuneConfig
from adapt.errors import ConfigError
from adapt.train.schedule import branch_step
from adapt.tuning.turns import check_turns, lengths_of, steps_after

TRAINING = TrainingConfig(max_steps=90, schedule="wsd", warmup_steps=4)
ASHA = TuneConfig(scheduler="asha", turns=3, reduction=3)


def judged(training: TrainingConfig = TRAINING, tune: TuneConfig = ASHA) -> Config:
    return replace(Config(), training=training, tune=tune)


def test_each_turn_is_longer_than_the_one_before_and_the_last_as_long_as_configured() -> None:
    assert [steps_after(judged(), turn) for turn in range(3)] == [10, 30, 90]
    assert steps_after(judged(), -1) == 90
    assert lengths_of(ASHA) == [1, 3, 9]
    assert (lengths_of(TuneConfig()), steps_after(replace(Config(), training=TRAINING), 0)) == ([1], None)


def test_a_turn_starts_where_the_cooldown_of_the_one_before_began() -> None:
    """So that it may, that must lie after the warm-up, and within the next turn."""
    steps = [steps_after(judged(), turn) or 0 for turn in range(3)]
    begun = [branch_step(TRAINING, length) or 0 for length in steps]
    assert TRAINING.warmup_steps is not None
    assert all(TRAINING.warmup_steps < branch <= length for branch, length in zip(begun, steps[1:], strict=False))


WRONG: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "another schedule": ({"schedule": "linear"}, [], "could not go on from there"),
    "a warm-up that grows": ({"warmup_steps": None}, [], "could not go on from there"),
    "no length": ({"max_steps": None}, [], "could not go on from there"),
    "a length that is searched": ({}, ["training.epochs"], r"training\.epochs cannot be searched"),
    "a first turn within the warm-up": ({"warmup_steps": 10}, [], "the first turn has 10 steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_training_that_could_not_go_on_is_refused(name: str) -> None:
    changes, fields, message = WRONG[name]
    config = judged(replace(TRAINING, **changes))
    with pytest.raises(ConfigError, match=message) as caught:
        check_turns(config, fields)
    assert caught.value.fix
    check_turns(replace(config, tune=TuneConfig()), fields)  # without a scheduler all of it is fine


def test_turns_of_one_length_are_refused() -> None:
    for tune in (replace(ASHA, turns=1), replace(ASHA, reduction=1)):
        with pytest.raises(ConfigError, match="turns of different lengths"):
            check_turns(judged(tune=tune), [])
    check_turns(judged(), ["training.learning_rate"])
