"""The form in which an objective needs its corpus prepared, beyond plain tokens."""

from dataclasses import dataclass, fields
from typing import Any

from adapt.config import ObjectiveConfig
from adapt.schema import marks_of


@dataclass(frozen=True)
class Form:
    """The default is that of token masking."""

    marks: tuple[str, ...] = ()
    """Columns of truth values, one a token."""
    entity_field: str | None = None
    """Field of the records that holds entities."""
    tagger: str | None = None
    """`module:function` that finds entities."""
    ends: bool = False
    """Documents end with the end-of-text token, so that a causal model learns where to end."""

    @classmethod
    def of(cls, objective: ObjectiveConfig) -> "Form":
        """What an objective asks for."""
        entity_field, tagger = (objective.entity_field, objective.tagger) if objective.kind == "entity" else (None,) * 2
        return cls(marks_of(objective.kind), entity_field, tagger, objective.kind == "causal")

    def identity(self) -> dict[str, Any]:
        """The fields that differ from the default. So objectives with the same needs share a prepared corpus."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


PLAIN = Form()
"""Tokens alone."""
