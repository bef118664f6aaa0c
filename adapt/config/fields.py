"""Declares the fields of configuration sections, and converts values from YAML and command lines.

A field declared with `how(...)` changes how the work is done, not its result. Such a field is not part of any stage's
key, so changing it repeats no work. `read_fields` converts plain values to dataclasses. pydantic checks types and
ranges.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from adapt.support.errors import ConfigError

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

    Lists of paths are declared this way, because a stage's key contains a digest of the files' content, not the paths.
    """
    return field(default_factory=list, metadata={"how": True})


def what(section: Any) -> dict[str, Any]:
    """Returns the fields of a section that determine results, keyed by name: all fields not declared with `how`.

    The section's class attribute `earlier`, if any, has fields of earlier versions with the values that are now fixed.
    They are returned too, so that the keys of earlier results remain valid.
    """
    determine = {f.name: getattr(section, f.name) for f in fields(section) if not f.metadata.get("how")}
    return {**getattr(section, "earlier", {}), **determine}


_SIGNS = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
_WHOLE = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_BY_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?|inf|nan|True|False")
_WORDS = {str: "str", int: "int", float: "float", bool: "bool", list: "list", dict: "dict", NoneType: "null"}
_WORDS |= {Mapping: "dict", Sequence: "list"}


def read_fields(kind: Any, values: Any, name: str = "", see: str = "") -> Any:
    """Converts plain values to a type: a dataclass of fields, a list of such dataclasses, or a field's type.

    Args:
        kind: the type. An integer is accepted as a float. A text that is a number (from a placeholder in a chain) is
            converted to a number. Nothing else is converted.
        values: plain values.
        name: section or field that is read, for messages.
        see: hint on where to read more, for messages; may be empty.

    Raises:
        ConfigError: names the first field that has the wrong type, is out of its range, or is not finite.
    """
    _check_numbers(values, name)
    try:
        return _validated(kind, values)
    except ValidationError as error:
        values = _with_numbers(kind, values, error.errors(include_url=False))
    try:
        return _validated(kind, values)
    except ValidationError as error:
        raise _in_words(kind, values, error.errors(include_url=False), name, see) from error


def check_dataclass(section: Any, name: str = "") -> None:
    """Checks the field values of a dataclass that was built in Python."""
    read_fields(type(section), asdict(section), name)


def hints_of(kind: Any) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, keyed by field. The types include the allowed ranges."""
    return _hints(kind)


def options_of(kind: Any) -> tuple[Any, ...]:
    """Returns the member types of a union, or the type itself if it is not a union."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(option for each in get_args(kind) for option in options_of(each))
    return (kind,)


def field_name(keys: Sequence[str | int]) -> str:
    """Formats the path to a field for error messages, such as `corpus.sources, entry 2, weight`."""
    name = str(keys[0])
    for before, key in pairwise(keys):
        name += f", entry {key + 1}" if isinstance(key, int) else f", {key}" if isinstance(before, int) else f".{key}"
    return name


def type_words(kind: Any, with_range: bool = False) -> list[str]:
    """Returns descriptions of the types and values that a field accepts, for error messages."""
    options = options_of(kind)
    ranges = {option: f" {_limits(option)}" if with_range and _limits(option) else "" for option in options}
    return list(dict.fromkeys(f"{word}{ranges[option]}" for option in options for word in _named(option)))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _validated(kind: Any, values: Any) -> Any:
    return _adapter(kind).validate_json(json.dumps(values, default=str), strict=True)


def _with_numbers(kind: Any, values: Any, errors: Sequence[Any]) -> Any:
    """Converts texts in the values to numbers if pydantic reported that a number is expected there."""
    values = deepcopy(values)
    for error in errors:
        keys, _, value = _place(kind, values, error["loc"])
        if error["type"] in ("int_type", "float_type") and isinstance(value, str) and _NUMBER.fullmatch(value):
            number = int(value) if _WHOLE.fullmatch(value) else float(value)
            if not keys:
                return number
            holder = values
            for key in keys[:-1]:
                holder = holder[key]
            holder[keys[-1]] = number
    return values


def _check_numbers(value: Any, *keys: str | int) -> None:
    """Raises ConfigError for numbers that are not finite or do not fit in 64 bits (random generators reject those)."""
    if isinstance(value, Mapping):
        for key, content in value.items():
            _check_numbers(content, *([] if keys == ("",) else keys), str(key))
    elif isinstance(value, list | tuple):
        for number, content in enumerate(value):
            _check_numbers(content, *keys, number)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{field_name(keys)} is {value}, but must be a finite number", "choose a finite number")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(
            f"{field_name(keys)} is {value}, but must fit in a signed 64-bit integer",
            "choose a number from -2^63 to 2^63 - 1",
        )


def _in_words(kind: Any, values: Any, errors: Sequence[Any], name: str, see: str) -> ConfigError:
    """Converts pydantic's errors to an error that names the field, the accepted types, the value, and a fix."""
    keys, wanted, value = _place(kind, values, errors[0]["loc"])
    shown = field_name([*filter(None, [name]), *keys]) if keys or name else "the value"
    ours = [each for each in errors if _place(kind, values, each["loc"])[0] == keys]
    further = f" ({see})" if see else ""
    if missing := next((each for each in ours if each["type"] == "missing" and isinstance(each["loc"][-1], str)), None):
        return ConfigError(f"{shown} has no {missing['loc'][-1]}", f"add `{missing['loc'][-1]}: …`")
    if unexpected := next((each for each in ours if each["type"] == "unexpected_keyword_argument"), None):
        return ConfigError(f"unknown key {unexpected['loc'][-1]} in {shown}", "remove it")
    if value is None:
        return ConfigError(f"{shown} has no value", "give it one, or leave the field out to keep its default")
    if rule := _range(wanted, value):
        return ConfigError(f"{shown} is {value}, but must be {rule}", f"choose a value in that range{further}")
    words = type_words(wanted)
    if not words:
        return ConfigError(f"{shown}: {errors[0]['msg']}", see or "correct the value")
    choices = [str(choice) for option in options_of(wanted) for choice in _choices(option)]
    fix = _mended(words, choices, value)
    return ConfigError(
        f"{shown} takes {' or '.join(words)}, not {value}", f"{fix}{further}" if fix else see or "correct the value"
    )


def _place(kind: Any, values: Any, location: Sequence[Any]) -> tuple[list[str | int], Any, Any]:
    """Finds the field that a pydantic error is about.

    pydantic's location of the error begins with keys and list positions that lead to the field. Other parts may follow,
    such as the name of a type in a union. They are ignored. Returns the keys and positions, and the declared type and
    the value of the field.
    """
    keys: list[str | int] = []
    for key in location:
        inner = next(_below(kind, values, key), None)
        if inner is None:
            break
        kind, values = inner
        keys.append(key)
    return keys, kind, values


def _below(kind: Any, values: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    for option in map(_bare, options_of(kind)):
        hints = hints_of(option) if is_dataclass(option) and isinstance(values, Mapping) else {}
        if key in hints and key in values:
            yield hints[key], values[key]
        elif get_origin(option) is list and isinstance(key, int) and isinstance(values, list):
            yield get_args(option)[0], values[key]


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _range(kind: Any, value: Any) -> str:
    """Returns the range that a number violates, such as `>=0 and <=1`; empty if the field's type has no range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    for option in options_of(kind):
        if get_origin(option) is Annotated and (_bare(option) is float or isinstance(value, int)):
            return _limits(option)
    return ""


def _limits(kind: Any) -> str:
    """Returns the range of a type, such as `>=0 and <=1`; empty if the type has no range."""
    marks = [mark for mark in getattr(kind, "__metadata__", ()) if type(mark) in _SIGNS]
    return " and ".join(f"{_SIGNS[type(mark)][0]}{getattr(mark, _SIGNS[type(mark)][1])}" for mark in marks)


def _named(option: Any) -> list[str]:
    """Returns the words for a type in error messages, such as `int` or, for a `Literal`, the list of its values."""
    bare = _bare(option)
    if get_origin(bare) is Literal:
        return [", ".join(map(str, get_args(bare)))]
    if get_origin(bare) is tuple:
        return [f"[{', '.join(_WORDS.get(_bare(each), 'value') for each in get_args(bare))}]"]
    return [word] if (word := _WORDS.get(get_origin(bare) or bare)) else []


def _choices(option: Any) -> tuple[Any, ...]:
    return get_args(option) if get_origin(option) is Literal else ()


def _mended(words: Sequence[str], choices: Sequence[str], value: Any) -> str:
    """Returns advice on how to correct a value of the wrong type; empty if there is no advice for the value."""
    text = str(value)
    same = [choice for choice in choices if choice.lower() == text.lower()]
    if near := same or get_close_matches(text, choices, 1):
        return f"did you mean {near[0]}?"
    if words[0] == "str" and _BY_NUMBER.fullmatch(text):
        return "put the value in quotes, so that YAML reads it as text"
    if words[0] == "dict":
        return "write {option: value}"
    if "list" in words and not isinstance(value, list | Mapping):
        return f"write a list: [{value}]"
    if words[0] == "bool":
        return "write true or false"
    if "int" in words and re.fullmatch(r"[-+]?\d+\.0", text):
        return f"write it as a whole number: {text[:-2]}"
    if {"int", "float"} & {*words} and re.match(r"[-+]?[\d.]", text) and not _BY_NUMBER.fullmatch(text):
        return "write the number in digits, without a unit and without commas, such as 10000 or 0.05"
    return ""
