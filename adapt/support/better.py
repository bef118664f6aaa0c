"""Declares whether higher or lower values of a metric are better. Searches and reports use the declarations."""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Better:
    """Annotation of a metric's type: whether higher or lower values are better."""

    sign: int
    """Direction of the metric: 1 if higher values are better, -1 if lower values are better."""


More = Annotated[T, Better(1)]
"""Type of a metric for which higher values are better: `score: More[float]`."""
Less = Annotated[T, Better(-1)]
"""Type of a metric for which lower values are better: `loss: Less[float | None]`."""


def better_directions(result: type[Any], only_declared: bool = False) -> dict[str, int]:
    """Returns the better direction of each metric of a result.

    The direction is 1 if higher values are better, -1 if lower values are better, and 0 if not declared. For a field
    such as `losses: dict[Literal["a", "b"], Loss]`, the declared metrics of `Loss` are returned under names such as
    `losses.a.NAME`.

    Args:
        result: dataclass of results.
        only_declared: whether to leave out numbers without a declared direction.
    """
    return {name: sign for name, sign in _ways(result) if sign or not only_declared}


def _ways(result: type[Any]) -> Iterator[tuple[str, int]]:
    for name, hint in get_type_hints(result, include_extras=True).items():
        keys, kind = get_args(hint) if get_origin(hint) is dict else (None, None)
        if get_origin(keys) is Literal and isinstance(kind, type) and is_dataclass(kind):
            declared = better_directions(kind, only_declared=True)
            yield from ((f"{name}.{key}.{inner}", sign) for key in get_args(keys) for inner, sign in declared.items())
        elif (sign := _sign(hint)) or _is_number(hint):
            yield name, sign


def _sign(hint: Any) -> int:
    return next((argument.sign for argument in get_args(hint) if isinstance(argument, Better)), 0)


def _is_number(hint: Any) -> bool:
    """Returns whether the type of a field is a number, or a number or None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return bool({int, float} & {*parts})
