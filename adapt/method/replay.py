"""Replay: a share of every training is text of the domains before, drawn from all of it alike.

So it is experience replay with a buffer as large as the past. Every row of the past comes equally often, as with the
reservoir of a bounded buffer; text on disk costs nothing but its share of the run. General text is replayed beside it
as `mixture.replay_paths` says, with any method; here its share can also grow or fall from domain to domain.
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
    """Replay of the text of the domains before."""

    fraction: OpenFraction = 0.1
    """Share of the rows of each training that are text of the domains before, from the second domain on (0.1 as in
    arXiv 2203.06311). Every row of that text comes equally often."""
    general_growth: float = 0.0
    """What is added to mixture.replay_fraction (and replay_last) for each domain after the first; below 0 the share of
    general text falls along the sequence. Domains that are added later change nothing before them."""


class Replay(Method):
    """Plain training on text that is mixed with that of the domains before."""

    Options = ReplayOptions
    kind: ClassVar[str] = "replay"

    def __init__(self, options: ReplayOptions) -> None:
        super().__init__(options)
        self.past_fraction = options.fraction
        self.general_growth = options.general_growth

    def what(self) -> dict[str, Any]:
        """That of plain training. The share is part of the mixture, where there is something to replay."""
        return Method().what()

    def check(self, config: Config, model: Path) -> None:
        """Refuses shares that leave nothing to the domain, and jobs that have nothing to replay.

        Raises:
            ConfigError: says which.
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
        if not mixture.replay_paths:
            raise ConfigError(
                "replay.general_growth is set, but there is no general text to replay",
                "name it in mixture.replay_paths",
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
    """Refuses shares of past and general text that leave nothing to the domain.

    Args:
        field: says the share of past text.
        share: that share.
        mixture: says the share of general text.

    Returns:
        The largest share of general text in the run.

    Raises:
        ConfigError: both sum to 1 or more.
    """
    general = max(mixture.replay_fraction, mixture.replay_last or 0.0) if mixture.replay_paths else 0.0
    if share + general >= 1:
        raise ConfigError(
            f"{field} {share:g} and mixture.replay_fraction {general:g} leave no share of the run to the domain",
            "lower one of them, so that they sum to less than 1",
        )
    return general
