"""What sections are made of: types with ranges, the mark that tells how from what, and reading them from plain values.

A field made with `how(...)` says how the work is done, not what comes out; it never enters a stage's key, so changing
it redoes nothing.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Annotated, Any, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Le, Lt

PositiveInt: TypeAlias = Annotated[int, Gt(0)]
NonNegativeInt: TypeAlias = Annotated[int, Ge(0)]
PositiveFloat: TypeAlias = Annotated[float, Gt(0)]
NonNegativeFloat: TypeAlias = Annotated[float, Ge(0)]
Fraction: TypeAlias = Annotated[float, Ge(0), Le(1)]
ProperFraction: TypeAlias = Annotated[float, Ge(0), Lt(1)]
PositiveFraction: TypeAlias = Annotated[float, Gt(0), Le(1)]
OpenFraction: TypeAlias = Annotated[float, Gt(0), Lt(1)]

T = TypeVar("T")


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
