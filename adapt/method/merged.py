"""Merging after the fact: each domain is learnt by a model of its own, from the base, and then all models are merged.

So no training knows of another, and only the merge can lose what a domain has taught. The way of merging is that of
section `merge`, as in `job: merge` (task arithmetic, arXiv 2212.04089; TIES, 2306.01708; DARE, 2311.03099; the mean).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.method.base import Method


class MergedAfter(Method):
    """Plain training of each domain from the base; after each domain the merge of all models so far is measured."""

    kind: ClassVar[str] = "merge"
    is_merged_after: ClassVar[bool] = True

    def what(self) -> dict[str, Any]:
        """That of plain training, which it is: the merge is a stage of its own."""
        return Method().what()

    def check(self, config: Config, model: Path) -> None:
        """Refuses jobs that learn one domain.

        Raises:
            ConfigError: there is nothing to merge.
        """
        if len(config.corpus.sources) < 2:
            raise ConfigError(
                "method.kind is merge, but there is one domain, so there are no models to merge",
                "list the domains as corpus.sources and use dontstop sequence; dontstop merge merges models that are"
                " there",
            )
