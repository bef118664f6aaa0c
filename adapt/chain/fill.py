"""Placeholders: `{data}`, `{task}`, `{task.metric}`, `{task.domain.corpus}`."""

import re
from collections.abc import Mapping
from typing import Any

from adapt.chain.file import ChainFile
from adapt.errors import ConfigError
from adapt.parse.keys import unknown

_PLACEHOLDER = re.compile(r"\{([\w-]+(?:\.[\w-]+)*)\}")
_DEPTH = 10


def fill(value: Any, source: ChainFile, chosen: Mapping[str, str], place: str, depth: int = _DEPTH) -> Any:
    """A value with its placeholders filled in, also inside lists and sections.

    A text that is one placeholder and nothing else becomes what that stands for, with its type.

    Args:
        value: of a chain file.
        source: has `let` and the sets.
        chosen: the member of each set that is swept over.
        place: where the value stands, as messages name it.
        depth: placeholders may stand inside the values of placeholders, so many levels deep.

    Raises:
        ConfigError: a placeholder stands for nothing.
    """
    if isinstance(value, Mapping):
        return {name: fill(inner, source, chosen, place, depth) for name, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, source, chosen, place, depth) for inner in value]
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return value
    if not depth:
        what = f"{place}: the placeholder {value} refers back to itself"
        raise ConfigError(what, "give one of the names in this circle a value without a placeholder")
    if whole := _PLACEHOLDER.fullmatch(value):
        filled = _value(whole[1], source, chosen, place)
    else:
        filled = _PLACEHOLDER.sub(lambda match: _text(match[1], source, chosen, place), value)
    return fill(filled, source, chosen, place, depth - 1)


def _text(path: str, source: ChainFile, chosen: Mapping[str, str], place: str) -> str:
    """What a placeholder inside a text stands for."""
    value = _value(path, source, chosen, place)
    if value is None:
        raise ConfigError(f"{{{path}}} in {place} has no value, and stands in a text", "give it a value")
    return str(value)


def _value(path: str, source: ChainFile, chosen: Mapping[str, str], place: str) -> Any:
    """What a dotted name stands for. An attribute named like a set names a member of it, whose attributes follow."""
    first, *rest = path.split(".")
    if first not in chosen:
        if rest or first not in source.let:
            raise unknown(f"{{{path}}} in {place}", first, {*source.let, *chosen})
        return source.let[first]
    of_set, member = first, chosen[first]
    for number, name in enumerate(rest):
        attributes = source.sets[of_set].get(member)
        if attributes is None:
            raise unknown(f"{member} in {place}, {{{path}}}", member, set(source.sets[of_set]))
        if name not in attributes:
            raise unknown(f"{{{path}}} in {place}", name, set(attributes))
        if number == len(rest) - 1:
            return attributes[name]
        if name not in source.sets:
            raise ConfigError(f"{{{path}}} in {place}: {name} is no set", f"use one of {', '.join(source.sets)}")
        of_set, member = name, str(attributes[name])
    return member
