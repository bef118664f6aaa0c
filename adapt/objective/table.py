"""The objectives that a configuration can name, and what each adds to the keys of stages. Loads no torch."""

from typing import Any

from adapt.config import Config, what
from adapt.config.plugin import imported, plugged, source_digest


def check_objective(config: Config) -> None:
    """Refuses a user's own objective that is none. Parsing knows the others.

    Raises:
        ConfigError: it cannot be imported, or is no way of masking.
    """
    kind = config.objective.kind
    if ":" in kind:
        from adapt.objective.masking import Masking

        plugged("objective.kind", kind, {}, Masking)  # type: ignore[type-abstract]


def objective_what(config: Config) -> dict[str, Any]:
    """What the objective adds to the key of a stage. A user's own is known by its source too."""
    kind = config.objective.kind
    if ":" not in kind:
        return what(config.objective)
    return {**what(config.objective), "source": source_digest(imported("objective.kind", kind))}
