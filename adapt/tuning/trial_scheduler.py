"""Schedulers of trials: a trial is measured after a part of its steps, and continues if Ray Tune's scheduler allows it.

Schedule `wsd` makes this possible. Each turn is a training of its own length, which starts where the cooldown of the
turn before began.
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
"""Fields that say how long a training is."""


def lengths_of(tune: TuneConfig) -> list[int]:
    """[turns] How long each turn is, in units of the first."""
    return [tune.reduction**turn for turn in range(tune.turns)] if tune.scheduler != "none" else [1]


def steps_after(config: Config, turn: int) -> int | None:
    """The steps that a trial has done after a turn; None where trials have one turn, as long as is configured."""
    if config.tune.scheduler == "none":
        return None
    assert config.training.max_steps
    lengths = lengths_of(config.tune)
    return ceil(config.training.max_steps * lengths[turn] / lengths[-1])


def check_turns(config: Config, fields: Iterable[str]) -> None:
    """Refuses turns after which a training could not go on.

    Args:
        config: as it is.
        fields: of the space.

    Raises:
        ConfigError: says what it needs.
    """
    tune, training = config.tune, config.training
    if tune.scheduler == "none":
        return
    if training.schedule != "wsd" or training.warmup_steps is None or training.max_steps is None:
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} judges trials on their way, and this training could not go on from there",
            f"set training.schedule wsd, training.warmup_steps and {STEPS}",
        )
    for name in fields:
        if name in LENGTHS or name in ("training.schedule", "training.warmup_steps", "training.warmup_fraction"):
            raise ConfigError(f"{name} cannot be searched while tune.scheduler judges trials by steps", "remove it")
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
    """Refuses a trial whose longer turn does other steps than a shorter one, from which it therefore cannot start.

    Args:
        scheduler: of the search, for the message.
        shorter: the trial up to the end of a turn.
        longer: the same trial up to the end of a longer turn.

    Raises:
        ConfigError: names what depends on the length of a training.
    """
    shared = {stage.key for stage in everything([shorter])}
    for stage in everything([longer]):
        if isinstance(stage, Train) and stage.key not in shared and (reason := stage.length_matters):
            raise ConfigError(
                f"tune.scheduler {scheduler} lets a longer training start from the state of a shorter one, but with"
                f" {reason} the steps of a training depend on its length",
                "set tune.scheduler none, so that each trial is trained whole",
            )
