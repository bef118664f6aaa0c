"""Refuses empty values (`learning_rate:`) and unexpanded shell variables such as `$HOME`."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import yaml

from adapt.config import Config
from adapt.config.reading import field_name, hints_of, options_of, takes_null
from adapt.parse.keys import Named, option_sections
from adapt.parse.yaml_file import Keys, node_at
from adapt.support.errors import ConfigError

Place = Callable[[Keys], str]
"""Formats the location of a value for error messages, as ` in FILE, line N`."""
_VARIABLE = re.compile(r"\$(?:\{[^}]*\}|[A-Za-z_]\w*)")
_SHELL = (
    "write the value out (a path may begin with ~), or give it on the command line in double quotes, where the shell"
    ' puts the value in: --{name} "{value}"'
)


def refuse_blanks(given: Mapping[str, Any], named: Named, place: Place, root: yaml.Node | None = None) -> None:
    """Refuses null in fields that cannot be null, and shell variables, because variables are not expanded here.

    Args:
        given: sections with their fields.
        named: names of the chosen method, objective, selections and embedder, whose options are also sections.
        place: formats the location of a value.
        root: the YAML document that `given` was read from, or None. It distinguishes an empty value from `null`.
            Values of unknown type, such as options in a list of selections, may be null but not empty.

    Raises:
        ConfigError: a value is null or contains a shell variable. The message names the field and the location.
    """
    kinds = _kinds(named, frozenset(given))
    for section, content in given.items():
        for keys, kind, value in _leaves(content, kinds.get(section, Any), (section,)):
            name = field_name(keys)
            is_text = isinstance(keys[-1], int) or str(keys[-1]).endswith("_field")
            is_blank = value == "" and is_text and kind is not Any  # an empty path would mean the current folder
            if value is None:
                is_blank = _is_empty(root, keys) if kind is Any else not takes_null(kind)
            if is_blank:
                raise ConfigError(
                    f"{name}{place(keys)} has no value",
                    "write one after it, or remove it to keep the default" + _default(keys),
                )
            if isinstance(value, str) and kind is not Any and (variable := _variable(keys, value)):
                what = f"{name}{place(keys)} is {value}, but {variable} is not expanded: variables are the shell's"
                raise ConfigError(what, _SHELL.format(name=".".join(map(str, keys[:2])), value=value))


def takes_list(name: str, named: Named) -> bool:
    """Returns whether the field with a dotted name may be a list."""
    return any(get_origin(option) is list for option in _options(name, named))


def takes_text(name: str, named: Named) -> bool:
    """Returns whether the field with a dotted name may be any text and no number."""
    options = _options(name, named)
    return str in options and not {int, float} & {*options}


def _options(name: str, named: Named) -> tuple[Any, ...]:
    """Returns the types that the field with a dotted name may have."""
    section, _, field = name.partition(".")
    kind = _kinds(named, frozenset([section])).get(section, Any)
    if field:
        kind = hints_of(kind).get(field, Any) if is_dataclass(kind) else Any
    return options_of(kind)


@cache
def _kinds(named: Named, sections: frozenset[str]) -> dict[str, Any]:
    """Returns the types of the fields outside sections, and the classes of the given sections."""
    return {**hints_of(Config), **option_sections(named, sections)}


def _leaves(value: Any, kind: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yields the keys, the declared type and the content of each scalar in nested values.

    An undeclared type is `Any`.
    """
    options = [option for option in options_of(kind) if option is not NoneType]
    if isinstance(value, Mapping):
        section = next((option for option in options if is_dataclass(option)), None)
        inner = hints_of(section) if section else {}
        for name, content in value.items():
            yield from _leaves(content, inner.get(name, Any), (*keys, str(name)))
    elif isinstance(value, list | tuple):
        inside = next((get_args(option) for option in options if get_origin(option) in (list, tuple)), ())
        for number, content in enumerate(value):
            yield from _leaves(content, inside[0] if inside else Any, (*keys, number))
    else:
        yield keys, kind, value


def _is_empty(root: yaml.Node | None, keys: Keys) -> bool:
    """Returns whether a YAML value is empty, as in `learning_rate:`.

    Null is not empty. A cleaning block that has only a name is not empty either.
    """
    node, _ = node_at(root, keys)
    is_block = keys[:2] == ("corpus", "cleaning") and len(keys) == 4
    return isinstance(node, yaml.ScalarNode) and node.value == "" and not is_block


def _variable(keys: Keys, value: str) -> str | None:
    """Returns the shell variable in a text, or None.

    The names of existing files and of data fields may contain a $, so they are not searched for variables.
    """
    if str(keys[-1]).endswith("_field"):
        return None
    found = _VARIABLE.search(value.partition("?")[0] if "://" in value else value)
    return found[0] if found and not Path(value).expanduser().exists() else None


def _default(keys: Keys) -> str:
    """Formats the default of a field in brackets. Long defaults give an empty text."""
    section = getattr(Config(), str(keys[0]), None)
    value = getattr(section, str(keys[1]), None) if len(keys) == 2 else section if len(keys) == 1 else None
    return f" ({value})" if isinstance(value, int | float | str) and len(str(value)) <= 40 else ""
