"""Divides trials into turns. After each turn, a trial is measured, and Ray Tune's scheduler may end it.

Turns need the learning-rate schedule `wsd`, which ends with a cooldown. Each turn is a separate training that is longer
than that of the previous turn. It starts from the state that the previous training had before its cooldown.
"""

from collections.abc import Iterable
from math import ceil

from adapt.config import Config, TuneConfig
from adapt.runner.stage import everything
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from adapt.tuning.job_trial import Trial

STEPS = "training.max_steps"
LENGTHS = (STEPS, "training.max_tokens", "training.max_flops", "training.epochs")
"""Fields that set the length of a training."""


def lengths_of(tune: TuneConfig) -> list[int]:
    """Returns the length of a trial at each measurement, in multiples of the length at the first measurement."""
    return [tune.reduction**turn for turn in range(tune.turns)] if tune.scheduler != "none" else [1]


def steps_after(config: Config, turn: int) -> int | None:
    """Returns the number of steps of a trial up to its measurement number `turn`, from 0; None without a scheduler."""
    if config.tune.scheduler == "none":
        return None
    assert config.training.max_steps
    lengths = lengths_of(config.tune)
    return ceil(config.training.max_steps * lengths[turn] / lengths[-1])


def check_turns(config: Config, fields: Iterable[str]) -> None:
    """Checks that trainings can continue after each measurement of a trial.

    Args:
        config: the unchanged configuration.
        fields: names of the searched fields.

    Raises:
        ConfigError: the trainings cannot continue. The message says which fields must be set.
    """
    tune, training = config.tune, config.training
    if tune.scheduler == "none":
        return
    if training.phases:
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} compares trials before their end, but training.phases divides the run",
            "set tune.scheduler to none, or leave training.phases out",
        )
    if training.schedule != "wsd" or training.warmup_steps is None or training.max_steps is None:
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} compares trials before their end, but this training could not continue",
            f"set training.schedule wsd, training.warmup_steps and {STEPS}",
        )
    for name in fields:
        if name in LENGTHS or name in ("training.schedule", "training.warmup_steps", "training.warmup_fraction"):
            raise ConfigError(f"{name} cannot be searched while tune.scheduler compares trials by steps", "remove it")
    first = steps_after(config, 0)
    if tune.reduction < 2 or tune.turns < 2:
        raise ConfigError(
            "tune.scheduler needs turns of different lengths", "set tune.turns and tune.reduction from 2 on"
        )
    if first is not None and first <= training.warmup_steps:
        raise ConfigError(
            f"the first turn has {first} steps, and training.warmup_steps is {training.warmup_steps}",
            "set fewer tune.turns or warmup_steps, or more training.max_steps",
        )


def check_goes_on(scheduler: str, shorter: Trial, longer: Trial) -> None:
    """Refuses a trial if the steps of its training depend on the training's length.

    The longer training could then not continue the training that ended at an earlier measurement.

    Args:
        scheduler: name of the scheduler, for the message.
        shorter: the trial up to a measurement.
        longer: the same trial up to a later measurement.

    Raises:
        ConfigError: the training steps depend on the length. The message says why.
    """
    shared = {stage.key for stage in everything([shorter])}
    for stage in everything([longer]):
        if isinstance(stage, Train) and stage.key not in shared and (reason := stage.length_matters):
            raise ConfigError(
                f"tune.scheduler {scheduler} lets a longer training start from the state of a shorter one, but with"
                f" {reason} the steps of a training depend on its length",
                "set tune.scheduler none, so that each trial is trained whole",
            )
