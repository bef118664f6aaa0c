"""The search for good values of fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapt.config.fields import NonNegativeInt, PositiveFloat, PositiveInt, how


@dataclass(frozen=True)
class TuneConfig:
    """The search for good values of fields, by trials that are measured on dev (dontstop tune, docs/sweeps.md)."""

    job: str | None = None
    """The job whose fields are searched, such as `tapt`; null is the job that the file of the space is named after."""
    space: str | None = None
    """The file that says which fields are searched, and between which values: `tune_spaces/tapt.py`, or YAML."""
    searcher: Literal["random", "grid", "tpe"] = "random"
    """How values are proposed: `random` draws them, `grid` takes all combinations of listed values, `tpe` learns from
    the trials before (Optuna's tree-structured Parzen estimator; needs the extra `dontstop[optuna]`)."""
    scheduler: Literal["none", "asha", "median"] = "none"
    """Which trials go on: `none` all of them; with `asha` (asynchronous successive halving) and `median` a trial is
    judged after a part of training.max_steps, and goes on from there if it is among the best, or above the median. This
    needs training.schedule wsd, with training.warmup_steps. Population-based training is left out: it leaves no values
    that a file could hold (docs/sweeps.md)."""
    turns: PositiveInt = 3
    """`asha` and `median`: how often a trial is measured, the last time after training.max_steps."""
    reduction: PositiveInt = 3
    """`asha` and `median`: each turn is so many times as long as the one before; of `asha`, one in so many trials goes
    on."""
    samples: PositiveInt = 16
    """Trials, beside that of the configuration as it is; of `grid`, the most that its combinations may be."""
    objectives: list[str] = field(default_factory=lambda: ["dev_score"])
    """What is to be good: `dev_score`, the mean over all tasks and seeds of fine-tuning, or figures of the job's result
    by name, such as losses.domain.after. With several, the first one decides which trial is best."""
    seed: NonNegativeInt = 0
    """Seed of the proposals."""
    at_once: PositiveInt = how(4)
    """Trials that are under way at once. `tpe` proposes a trial from the results of all trials but the last so many, so
    what it proposes depends on this number, and on nothing that takes time."""
    fresh_seeds: list[int] = field(default_factory=lambda: [1001, 1002, 1003, 1004, 1005])
    """The best trial, and the configuration as it is, are run again with these seeds, and only then tested. An empty
    list leaves this out."""
    budget_device_hours: PositiveFloat | None = None
    """Device-hours that the trials may take: none begins that is expected to go beyond."""
