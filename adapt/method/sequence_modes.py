"""Defines four methods of plain training that differ only in which model learns which text.

They are `one`, `joint`, `merge` and `replay`.

Papers use `one`, a model per domain, and `joint`, one model for all domains, as bounds for other methods. `merge`
trains a model per domain from the base model and then merges all models with the options of section `merge` (task
arithmetic, arXiv 2212.04089; TIES, 2306.01708; DARE, 2311.03099; the mean). So knowledge of a domain can only be lost
in the merge.

`replay` draws a share of every training run's rows uniformly from the text of all earlier domains. This is experience
replay with a buffer that holds all past text. Every past row is equally likely, as with a bounded buffer that is filled
by reservoir sampling. Any method can also replay general text (`mixture.replay_paths`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adapt.config import Config, MixtureConfig, OpenFraction
from adapt.method.base import Method
from adapt.support.errors import ConfigError


class One(Method):
    """Trains a separate model per domain, each from the base model (ONE). Nothing can be forgotten."""

    kind: ClassVar[str] = "one"
    trains_plainly: ClassVar[bool] = True
    mode: ClassVar[str | None] = "separate"


class Joint(Method):
    """Trains one model on the mixed text of all domains (JOINT)."""

    kind: ClassVar[str] = "joint"
    trains_plainly: ClassVar[bool] = True
    mode: ClassVar[str | None] = "joint"


class MergedAfter(Method):
    """Trains a model per domain from the base model, and after each domain merges all models so far."""

    kind: ClassVar[str] = "merge"
    trains_plainly: ClassVar[bool] = True
    is_merged_after: ClassVar[bool] = True

    def check(self, config: Config, model: Path) -> None:
        if len(config.corpus.sources) < 2:
            raise ConfigError(
                "method.kind is merge, but there is one domain, so there are no models to merge",
                "list the domains as corpus.sources and use dontstop sequence; dontstop merge merges existing models",
            )


@dataclass(frozen=True)
class ReplayOptions:
    """Options of replaying the text of earlier domains."""

    fraction: OpenFraction = 0.1
    """Share of a training run's rows that come from earlier domains (0.1 in arXiv 2203.06311). The first domain replays
    nothing. Every row of the earlier domains is equally likely."""


class Replay(Method):
    """Plain training on the domain's text, mixed with text of the earlier domains."""

    Options = ReplayOptions
    kind: ClassVar[str] = "replay"
    trains_plainly: ClassVar[bool] = True

    def __init__(self, options: ReplayOptions) -> None:
        super().__init__(options)
        self.past_fraction = options.fraction

    def check(self, config: Config, model: Path) -> None:
        general = check_share_left("replay.fraction", self.past_fraction, config.mixture)
        if not config.corpus.sources and not general:
            raise ConfigError(
                "method.kind is replay, but there is neither an earlier domain nor general text to replay",
                "set mixture.replay_paths and mixture.replay_fraction to replay general text, or use dontstop sequence",
            )


def check_share_left(field: str, share: float, mixture: MixtureConfig) -> float:
    """Checks that replayed text leaves rows for the current domain. Returns the largest share of general text.

    Raises:
        ConfigError: both shares sum to 1 or more.
    """
    general = max(mixture.replay_fraction, mixture.replay_last or 0.0) if mixture.replays else 0.0
    if share + general >= 1:
        raise ConfigError(
            f"{field} {share:g} and mixture.replay_fraction {general:g} leave no rows of the run for the domain's text",
            "lower one of them, so that they sum to less than 1",
        )
    return general
