"""Which way a figure of a result is better: the field declares it, and searches and reports read the declaration."""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Better:
    """What a field declares about its figure."""

    sign: int
    """1 if more is better, -1 if less is better."""


More = Annotated[T, Better(1)]
"""A figure of which more is better: `score: More[float]`."""
Less = Annotated[T, Better(-1)]
"""A figure of which less is better: `loss: Less[float | None]`."""


def ways_of(result: type[Any], only_declared: bool = False) -> dict[str, int]:
    """1 for each figure of which more is better, -1 if less is, and 0 for a number that does not declare it.

    A field `losses: dict[Literal["a", "b"], Loss]` has the declared figures of `Loss`, as `losses.a.NAME`.

    Args:
        result: a dataclass.
        only_declared: leaves out numbers that declare nothing.
    """
    return {name: sign for name, sign in _ways(result) if sign or not only_declared}


def _ways(result: type[Any]) -> Iterator[tuple[str, int]]:
    for name, hint in get_type_hints(result, include_extras=True).items():
        keys, kind = get_args(hint) if get_origin(hint) is dict else (None, None)
        if get_origin(keys) is Literal and isinstance(kind, type) and is_dataclass(kind):
            declared = ways_of(kind, only_declared=True)
            yield from ((f"{name}.{key}.{inner}", sign) for key in get_args(keys) for inner, sign in declared.items())
        elif (sign := _sign(hint)) or _is_number(hint):
            yield name, sign


def _sign(hint: Any) -> int:
    return next((each.sign for each in get_args(hint) if isinstance(each, Better)), 0)


def _is_number(hint: Any) -> bool:
    """Whether a field is a number, or a number or None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return bool({int, float} & {*parts})
