"""Reads plain values back as what a type declares.

pydantic does that too, and more, but to import it takes a sixth of the time in which a finished job says that it is.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints


class Misfit(Exception):
    """A value that is not of its type: where it stands, by dotted name, and what it should be."""


def read_value(hint: Any, value: Any, place: str = "") -> Any:
    """A value of a type, made of what JSON keeps of it.

    Args:
        hint: a dataclass, `int`, `float`, `bool`, `str`, `Path`, `None`, `Any`, or `Literal`, unions, lists, tuples and
            mappings of such.
        value: as JSON has it.
        place: where it stands, for the message.

    Raises:
        Misfit: it is of another type, or a field is missing.
        TypeError: no value of such a type can be read.
    """
    origin: Any = get_origin(hint) or hint
    inner = get_args(hint)
    if origin in (Union, types.UnionType):
        return _first_that_fits(inner, value, place)
    if origin is Literal:
        return value if value in inner else _refuse(f"one of {', '.join(map(repr, inner))}", value, place)
    if origin in (list, tuple):
        return origin(_items(origin, inner, value, place))
    if origin in (dict, Mapping):
        return _mapping(inner, value, place)
    if is_dataclass(origin):
        return _instance(origin, value, place)
    return _single(hint, value, place)


def _single(hint: Any, value: Any, place: str) -> Any:
    if hint is Any or type(value) is hint:
        return value
    if hint is float and type(value) is int:  # JSON has one kind of number
        return float(value)
    if hint is int and type(value) is float and value.is_integer():
        return int(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint not in (int, float, bool, str, Path, types.NoneType):
        raise TypeError(f"no value of type {hint!r} can be read")
    return _refuse("null" if hint is types.NoneType else hint.__name__, value, place)


def _first_that_fits(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    if type(value) in kinds:
        return value
    misfit = None
    for kind in kinds:
        try:
            return read_value(kind, value, place)
        except Misfit as error:
            misfit = misfit or error
    raise misfit or Misfit(place)


def _items(origin: Any, inner: tuple[Any, ...], value: Any, place: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        _refuse("a list", value, place)
    kinds = inner if origin is tuple and inner[1:] != (...,) else inner[:1] * len(value)
    if len(kinds) != len(value):
        _refuse(f"{len(kinds)} items", value, place)
    pairs = zip(kinds, value, strict=True)
    return [read_value(kind, item, _within(place, number)) for number, (kind, item) in enumerate(pairs)]


def _mapping(inner: tuple[Any, ...], value: Any, place: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        _refuse("a mapping", value, place)
    key, kind = inner
    return {_key(key, name, place): read_value(kind, item, _within(place, name)) for name, item in value.items()}


def _key(hint: Any, key: Any, place: str) -> Any:
    """JSON's keys are text."""
    if hint is int and isinstance(key, str) and key.removeprefix("-").isdecimal():
        return int(key)
    return read_value(hint, key, _within(place, key))


def _instance(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        return value if isinstance(value, kind) else _refuse("a mapping", value, place)
    hints, read = _hints(kind), {}
    for field in fields(kind):
        if field.name in value:
            read[field.name] = read_value(hints[field.name], value[field.name], _within(place, field.name))
        elif field.default is field.default_factory is MISSING:
            raise Misfit(f"{_within(place, field.name)}: missing")
    return kind(**read)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _within(place: str, name: Any) -> str:
    return f"{place}.{name}" if place else str(name)


def _refuse(wanted: str, value: Any, place: str) -> NoReturn:
    raise Misfit(f"{place}: takes {wanted}, not {value!r}")
