"""Defines methods of plain training that differ in what is trained: a model per domain, or one for all domains.

Papers use `one` and `joint` as bounds for other methods. `merge` trains a model per domain from the base model and
then merges all models with the options of section `merge` (task arithmetic, arXiv 2212.04089; TIES, 2306.01708; DARE,
2311.03099; the mean). So knowledge of a domain can only be lost in the merge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from adapt.config import Config
from adapt.method.base import Method
from adapt.support.errors import ConfigError


class One(Method):
    """Trains a separate model per domain, each from the base model (ONE). Nothing can be forgotten."""

    kind: ClassVar[str] = "one"
    mode: ClassVar[str | None] = "separate"

    def what(self) -> dict[str, Any]:
        """Returns plain training's part of the key, since each training is plain."""
        return Method().what()


class Joint(Method):
    """Trains one model on the mixed text of all domains (JOINT)."""

    kind: ClassVar[str] = "joint"
    mode: ClassVar[str | None] = "joint"

    def what(self) -> dict[str, Any]:
        """Returns plain training's part of the key, since the training is plain."""
        return Method().what()


class MergedAfter(Method):
    """Trains each domain from the base model, and merges all models so far after each domain."""

    kind: ClassVar[str] = "merge"
    is_merged_after: ClassVar[bool] = True

    def what(self) -> dict[str, Any]:
        """Returns plain training's part of the key. The merge is a separate stage with its own key."""
        return Method().what()

    def check(self, config: Config, model: Path) -> None:
        """Refuses jobs with a single domain.

        Raises:
            ConfigError: there is nothing to merge.
        """
        if len(config.corpus.sources) < 2:
            raise ConfigError(
                "method.kind is merge, but there is one domain, so there are no models to merge",
                "list the domains as corpus.sources and use dontstop sequence; dontstop merge merges existing models",
            )
