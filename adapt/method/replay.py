"""Replay: a share of every training is text of the domains before, drawn from all of it alike.

So it is experience replay with a buffer as large as the past. Every row of the past comes equally often, as with the
reservoir of a bounded buffer; text on disk costs nothing but its share of the run. General text is replayed beside it
as `mixture.replay_paths` says, with any method.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from adapt.config import Config, OpenFraction
from adapt.errors import ConfigError
from adapt.method.base import Method


@dataclass(frozen=True)
class ReplayOptions:
    """Replay of the text of the domains before."""

    fraction: OpenFraction = 0.1
    """Share of the rows of each training that are text of the domains before, from the second domain on (0.1 as in
    arXiv 2203.06311). Every row of that text comes equally often."""


class Replay(Method):
    """Plain training on text that is mixed with that of the domains before."""

    Options = ReplayOptions
    kind: ClassVar[str] = "replay"

    def __init__(self, options: ReplayOptions) -> None:
        super().__init__(options)
        self.past_fraction = options.fraction

    def what(self) -> dict[str, Any]:
        """That of plain training. The share is part of the mixture, where there is something to replay."""
        return Method().what()

    def check(self, config: Config, model: Path) -> None:
        """Refuses shares that leave nothing to the domain, and jobs that have nothing to replay.

        Raises:
            ConfigError: says which.
        """
        general = config.mixture.replay_fraction if config.mixture.replay_paths else 0.0
        if self.past_fraction + general >= 1:
            raise ConfigError(
                f"replay.fraction {self.past_fraction:g} and mixture.replay_fraction {general:g} leave no share of the"
                " run to the domain",
                "lower one of them, so that they sum to less than 1",
            )
        if len(config.corpus.sources) < 2 and not general:
            raise ConfigError(
                "method.kind is replay, but there is no domain before, and no general text to replay",
                "name general text in mixture.replay_paths with a mixture.replay_fraction, or use jobs/sequence.py",
            )
