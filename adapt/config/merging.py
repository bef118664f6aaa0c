"""Models made of others without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config.fields import Fraction, how_list


@dataclass(frozen=True)
class MergeConfig:
    """A model made of others without training (dontstop merge). The base is model.path."""

    kind: Literal["interpolate", "average", "task_arithmetic", "ties", "dare", "residual"] = "interpolate"
    """`interpolate` lies between the base and one model, `average` is the mean of several, such as the checkpoints of a
    run; `task_arithmetic`, `ties` and `dare` add up what several models learnt beyond the base; `residual` adds to the
    first model, an adapted base, what the second, an instruct model of the same base, learnt (docs/merging.md)."""
    models: list[str] = how_list()
    """Ids or folders of models with the architecture and the vocabulary of the base; in a chain file also names of
    stages, such as `dapt[cs]`. `average` also takes checkpoints of trainings (…/checkpoints/…/step-…)."""
    shares: list[float] | None = None
    """How far to go from the base (0) to what the kind makes of the models (1), a model for each share; null is 0.5 for
    `interpolate`, 0.4 for `task_arithmetic` and `dare`, 1 for the others."""
    weights: list[float] | Literal["linear", "cosine", "sqrt"] | None = None
    """A weight for each model; null is the same for all. `task_arithmetic` and `dare` add as much of each model; `ties`
    and `average` divide by their sum. For `average` over a window, the oldest first, `linear`, `cosine` and `sqrt` are
    the weights that stand for such a decay of the learning rate; the same for all is the linear decay."""
    density: Fraction | None = None
    """`ties` and `dare`: share of each model's differences from the base that is kept; null is 0.2 for `ties` (the
    largest ones) and 0.1 for `dare` (random ones, by `seed`)."""
    extrapolate: bool = False
    """Whether shares may lie outside of 0 to 1."""
