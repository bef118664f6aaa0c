"""What the sections are made of: ranges, and the mark that tells how from what.

A field made with `how(...)` says how the work is done, not what comes out; it never enters a stage's key, so changing
it redoes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, TypeVar

# Ranges: to the type checker and the parser plain numbers; `out_of_range` holds values to RANGES by these names.
PositiveInt = int
NonNegativeInt = int
PositiveFloat = float
NonNegativeFloat = float
Fraction = float
ProperFraction = float
PositiveFraction = float
OpenFraction = float

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "PositiveInt": (">0", lambda value: value > 0),
    "NonNegativeInt": (">=0", lambda value: value >= 0),
    "PositiveFloat": (">0", lambda value: value > 0),
    "NonNegativeFloat": (">=0", lambda value: value >= 0),
    "Fraction": (">=0 and <=1", lambda value: 0 <= value <= 1),
    "ProperFraction": (">=0 and <1", lambda value: 0 <= value < 1),
    "PositiveFraction": (">0 and <=1", lambda value: 0 < value <= 1),
    "OpenFraction": (">0 and <1", lambda value: 0 < value < 1),
}

T = TypeVar("T")


def out_of_range(annotation: str, value: float) -> str | None:
    """Says what a number should have been by the annotation of its field; None if it is."""
    words, holds = RANGES.get(annotation.split(" ")[0], ("", math.isfinite))
    if not math.isfinite(value):
        return f"finite and {words}" if words else "finite"
    return None if holds(value) else words


def how(default: T) -> T:
    """A field that changes how the work is done and not its result."""
    value: T = field(default=default, metadata={"how": True})
    return value


def how_list() -> Any:
    """Like `how`, for a list that is empty by default (paths: the digest of what they hold is in the key instead)."""
    return field(default_factory=list, metadata={"how": True})


def what(section: Any) -> dict[str, Any]:
    """The fields of a section that determine results: everything not marked `how`."""
    return {f.name: getattr(section, f.name) for f in fields(section) if not f.metadata.get("how")}
