"""Replays text of earlier domains: a share of every training's rows is drawn uniformly from the text of all of them.

This is experience replay with a buffer that holds all past text. Every past row is equally likely, as with a bounded
buffer that is filled by reservoir sampling. Any method can also replay general text (`mixture.replay_paths`). With this
method, the share of general text can also grow or shrink from domain to domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from adapt.config import Config, MixtureConfig, OpenFraction
from adapt.method.base import Method
from adapt.support.errors import ConfigError


@dataclass(frozen=True)
class ReplayOptions:
    """Options of replaying the text of earlier domains."""

    fraction: OpenFraction = 0.1
    """Share of a training's rows that come from earlier domains (0.1 in arXiv 2203.06311). The first domain replays
    nothing. Every row of the earlier domains is equally likely."""
    general_growth: float = 0.0
    """Amount added to mixture.replay_fraction (and replay_last) for each domain after the first. If negative, the
    share of general text shrinks along the sequence. Adding domains at the end does not change earlier trainings."""


class Replay(Method):
    """Plain training on the domain's text, mixed with text of the earlier domains."""

    Options = ReplayOptions
    kind: ClassVar[str] = "replay"

    def __init__(self, options: ReplayOptions) -> None:
        super().__init__(options)
        self.past_fraction = options.fraction
        self.general_growth = options.general_growth

    def what(self) -> dict[str, Any]:
        """Returns plain training's part of the key. The replayed share enters the key as part of the mixture."""
        return Method().what()

    def check(self, config: Config, model: Path) -> None:
        """Refuses shares that leave no rows for the domain, and jobs without text to replay.

        Raises:
            ConfigError: the shares sum to 1 or more, or there is no text to replay.
        """
        general = check_share_left("replay.fraction", self.past_fraction, config.mixture)
        self._check_growth(config)
        if not config.corpus.sources and not general:
            raise ConfigError(
                "method.kind is replay, but there is no domain before, and no general text to replay",
                "name general text in mixture.replay_paths with a mixture.replay_fraction, or use dontstop sequence",
            )

    def _check_growth(self, config: Config) -> None:
        mixture, domains = config.mixture, len(config.sequence.order or config.corpus.sources)
        if not self.general_growth:
            return
        if not mixture.replays:
            raise ConfigError(
                "replay.general_growth is set, but there is no general text to replay",
                "name it in mixture.replay_paths, or set mixture.replay_kind",
            )
        grown = self.general_growth * max(domains - 1, 0)
        for name, share in (("replay_fraction", mixture.replay_fraction), ("replay_last", mixture.replay_last)):
            if share is not None and not 0 <= share + grown < 1 - self.past_fraction:
                raise ConfigError(
                    f"replay.general_growth {self.general_growth:g} makes the share of general text"
                    f" {share + grown:.3g} after {domains} domains (mixture.{name} is {share:g})",
                    f"choose it so that the share stays between 0 and {1 - self.past_fraction:g}",
                )


def check_share_left(field: str, share: float, mixture: MixtureConfig) -> float:
    """Refuses shares of past and general text that leave no rows for the current domain.

    Args:
        field: name of the field with the share of past text.
        share: share of past text.
        mixture: configuration with the share of general text.

    Returns:
        The largest share of general text in the run.

    Raises:
        ConfigError: both shares sum to 1 or more.
    """
    general = max(mixture.replay_fraction, mixture.replay_last or 0.0) if mixture.replays else 0.0
    if share + general >= 1:
        raise ConfigError(
            f"{field} {share:g} and mixture.replay_fraction {general:g} leave no share of the run to the domain",
            "lower one of them, so that they sum to less than 1",
        )
    return general
