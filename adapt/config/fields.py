"""Building blocks of configuration sections: number types with ranges, and the mark `how`.

A field declared with `how(...)` changes how the work is done, not its result. Such a field is not part of any stage's
key, so changing it repeats no work.
"""

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
    """Declares a field that changes how the work is done but not its result."""
    value: T = field(default=default, metadata={"how": True})
    return value


def how_list() -> Any:
    """Declares a `how` field that is a list, empty by default.

    Lists of paths are such fields. A stage's key contains a digest of the files' content instead of the paths.
    """
    return field(default_factory=list, metadata={"how": True})


def what(section: Any) -> dict[str, Any]:
    """Returns the fields of a section that determine results, keyed by name: all fields that are not marked `how`."""
    return {f.name: getattr(section, f.name) for f in fields(section) if not f.metadata.get("how")}
