"""Which objectives there are, and what they add to the keys of stages. Loads no torch."""

from typing import Any

from adapt.config import OBJECTIVES, Config, what
from adapt.errors import ConfigError
from adapt.nearest import nearest
from adapt.plugin import imported, plugged, source_digest


def check_objective(config: Config) -> None:
    """Refuses an objective that is not known.

    Raises:
        ConfigError: names the nearest; or a user's own cannot be imported.
    """
    kind = config.objective.kind
    if ":" in kind:
        from adapt.objective.masking import Masking

        plugged("objective.kind", kind, {}, Masking)  # type: ignore[type-abstract]
    elif kind not in OBJECTIVES:
        others = f"use one of {', '.join(OBJECTIVES)}, or package.module:Class for your own"
        raise ConfigError(f"objective.kind: there is no {kind!r}", nearest(kind, OBJECTIVES, others))


def objective_what(config: Config) -> dict[str, Any]:
    """What the objective adds to the key of a stage. A user's own is known by its source too."""
    kind = config.objective.kind
    if ":" not in kind:
        return what(config.objective)
    return {**what(config.objective), "source": source_digest(imported("objective.kind", kind))}
