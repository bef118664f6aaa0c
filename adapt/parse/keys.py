"""Unknown keys are refused, naming the nearest known one."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from adapt.config import Config, EvaluationSet, NamedModel, SourceConfig, TaskConfig, flat
from adapt.console import log
from adapt.errors import ConfigError
from adapt.method.table import option_sections
from adapt.parse.blanks import refuse_blanks, takes_list
from adapt.parse.stray import SWITCHES, refuse_stray
from adapt.parse.yaml_file import Keys, compose_yaml, load_yaml, node_at, read_yaml, yaml_text

_NO_FIELDS = frozenset({"config", "help", "print_config"})
"""Further options of a command line."""
OPTIONS = "method_options"
"""The field that holds the section of the chosen method; users write that section."""
_ENTRIES = {
    "corpus.sources": SourceConfig,
    "corpus.decontaminate": EvaluationSet,
    "comparison.models": NamedModel,
    "tasks": TaskConfig,
}
"""Fields that hold lists of sections."""
_FIRST = {"corpus": "paths", "method": "kind", "model": "path", "objective": "kind", "storage": "root"}
"""The field that is meant where a section is given a single value."""
SHOWN = 20
"""Names that a message lists in full."""
_NESTED = {"decontaminate": EvaluationSet}
"""Fields of such sections that hold lists again."""


def read_given(arguments: Sequence[str]) -> dict[str, Any]:
    """What a command line and the files that it names give, by section, before types are looked at.

    Raises:
        ConfigError: a key is not known, or a file cannot be read.
    """
    given: dict[str, Any] = {}
    method = _method_among(arguments)
    options: dict[str, str] = {}
    refuse_stray(arguments)
    for position, argument in enumerate(arguments):
        name, equals, value = argument[2:].partition("=")
        following = next(iter(arguments[position + 1 :]), "")
        if not argument.startswith("--"):
            continue
        _refuse_unknown_key(name.rstrip("+"), f"--{name}", method, _NO_FIELDS)
        text = value if equals else following
        if name == "config":
            if not text or text.startswith("--"):
                raise ConfigError("--config names no file", "write --config FILE")
            given = _merged(given, _read_file(text, method))
            continue
        if not equals and (following.startswith("--") or not arguments[position + 1 :]):
            if name in SWITCHES:
                continue
            raise ConfigError(f"argument --{name}: expected one argument", f"write --{name} VALUE; see --help")
        is_list, content = takes_list(name.rstrip("+"), method), {name.rstrip("+"): _read(text)}
        note_repeated(name, text, options, is_list)
        if is_list and name.endswith("+") and not isinstance(content[name[:-1]], list):
            content[name[:-1]] = [content[name[:-1]]]
        refuse_unknown_entries(content)
        sections = nested(content)
        refuse_sections_without_fields(sections, "the command line")
        refuse_blanks(sections, method, lambda keys: " on the command line", compose_yaml(f"{name}: {text}"))
        given = _merged(given, sections)
    return given


def _read_file(file: str, method: str) -> dict[str, Any]:
    """The sections of a file of fields."""
    content = read_yaml(file)
    refuse_sections_without_fields(content, file)
    _refuse_unknown(content, file, method)
    sections = nested(content)
    refuse_blanks(sections, method, place_in(file), compose_yaml(yaml_text(file)))
    return sections


def place_in(file: str, *above: str) -> Callable[[Keys], str]:
    """Says in which line of a YAML file a value is written, for messages.

    Args:
        file: path of the file.
        above: keys below which the values are found.
    """

    def place(keys: Keys) -> str:
        return f" in {file}, line {node_at(compose_yaml(yaml_text(file)), (*above, *keys))[1]},"

    return place


def note_repeated(name: str, value: str, before: dict[str, str], is_list: bool) -> None:
    """Says which value holds where an option is given twice. Refuses that for lists: the values may all be meant.

    Args:
        name: of the option, without dashes.
        value: what is given now.
        before: the options so far, by name; this one is added.
        is_list: whether the option takes a list.

    Raises:
        ConfigError: a list is given twice.
    """
    earlier = before.get(name)
    before[name] = value
    if earlier is None or earlier == value or name.endswith("+"):
        return
    if is_list and value != "[]":
        raise ConfigError(
            f"--{name} is given twice, as {earlier} and as {value}",
            f"give all values in one list: --{name} '[{earlier.strip('[]')}, {value.strip('[]')}]'; or leave one out",
        )
    log(f"--{name} is given twice: {value or 'an empty value'} holds, and not {earlier}")


def known_keys(method: str = "", among: frozenset[str] | None = None) -> set[str]:
    """Sections, and fields by dotted name, with those of the options of all methods, also of a user's own.

    Args:
        method: may be a user's own.
        among: sections of options to look at; None for all.

    Raises:
        ConfigError: there is no such method.
    """
    options = option_sections(method or "plain", among)
    named = {f"{section}.{field.name}" for section, kind in options.items() for field in fields(kind)}
    return {*_own_keys(), *options, *named}


@cache
def _own_keys() -> frozenset[str]:
    """All but the options of methods."""
    return frozenset({*flat(Config()), *Config.__dataclass_fields__, "debug"} - {OPTIONS})


def method_in(given: Mapping[str, Any]) -> str:
    """What sections with their fields say of method.kind; empty where they do not."""
    section = given.get("method")
    kind = section.get("kind") if isinstance(section, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _method_among(arguments: Sequence[str]) -> str:
    """The method.kind that a command line and its files name last; errors in them are left to `read_given`."""
    method = ""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        value = value if equals else next(iter(arguments[position + 1 :]), "")
        if name == "--method.kind":
            method = "" if _read(value) is None else value  # which is refused as a value, and not as a method
        elif name == "--config":
            with suppress(ConfigError):
                method = method_in(nested(read_yaml(value))) or method
    return method


def _read(text: str) -> Any:
    with suppress(yaml.YAMLError):  # the parser will say so
        return load_yaml(text)
    return text


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the sections of both; where both give a field, the second holds."""
    merged = {name: value for name, value in first.items() if name not in second}
    for name, value in second.items():
        before = first.get(name)
        merged[name] = {**before, **value} if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def refuse_unknown_values(content: Mapping[str, Any], place: str) -> None:
    """Refuses unknown keys in sections with fields, or in fields by dotted name."""
    _refuse_unknown(content, place, method_in(nested(content)))


def _refuse_unknown(content: Mapping[str, Any], place: str, method: str) -> None:
    for key in _keys(content):
        _refuse_unknown_key(key, f"{key} in {place}", method)
    refuse_unknown_entries(content)


def _refuse_unknown_key(key: str, shown: str, method: str, further: frozenset[str] = frozenset()) -> None:
    if key not in known_keys(method, frozenset([key.partition(".")[0]])) | further:
        raise unknown(shown, key, known_keys(method) | further)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Puts fields by dotted name into their sections. If a field is given twice, the later value holds."""
    sections: dict[str, Any] = {}
    for name, value in values.items():
        section, _, field = str(name).partition(".")
        if field:
            sections[section] = {**sections.get(section, {}), field: value}
        elif isinstance(value, Mapping):
            sections[section] = {**sections.get(section, {}), **nested(value)}
        else:
            sections[section] = value
    return sections


def refuse_unknown_entries(content: Mapping[str, Any]) -> None:
    """Refuses sections in lists that have unknown keys, or lack one that they need."""
    for name, kind in _ENTRIES.items():
        section, _, field = name.partition(".")
        inside = content.get(section)
        _refuse_entries(content.get(name) or (inside.get(field) if isinstance(inside, Mapping) else None), kind, name)


def _refuse_entries(entries: Any, kind: type, name: str) -> None:
    known = {field.name for field in fields(kind)}
    needed = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]
    form = f"write a list of them: [{{{', '.join(f'{key}: …' for key in needed or ['name'])}}}]"
    if isinstance(entries, Mapping):
        raise ConfigError(f"{name} is no list, but fields", form)
    for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        place = f"entry {number} of {name}"
        if not isinstance(entry, Mapping):  # which jsonargparse would take for a class to be imported
            raise ConfigError(f"{place} is {entry!r}, and not fields with values", form)
        for key in entry:
            if key not in known:
                raise unknown(f"{key} in {place}", str(key), known)
        for key in needed:
            if key not in entry:
                raise ConfigError(f"{place} has no {key}", f"add `{key}: …`")
        for key in _NESTED.keys() & entry.keys():
            _refuse_entries(entry[key], _NESTED[key], f"{key} in {place}")


def unknown(shown: str, name: str, known: set[str]) -> ConfigError:
    """The error for a key that is not known."""
    near = _shortened(name, known)
    if not near:
        by_field = {key.rsplit(".", 1)[-1]: key for key in known}
        near = difflib.get_close_matches(name, known, 1, 0.6)
        near = near or [
            by_field[match] for match in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_field, 1, 0.6)
        ]
    fix = f"use one of: {', '.join(sorted(known))}" if len(known) <= SHOWN else "see --help for all keys"
    return ConfigError(f"unknown key {shown}", f"did you mean {near[0]}?" if near else fix)


def _shortened(name: str, known: set[str]) -> list[str]:
    """The fields of the same section that a name may be short for, `lr` or `learn` for `learning_rate`; short first."""
    section, _, field = name.lower().rpartition(".")
    inside = sorted((key.removeprefix(f"{section}.") for key in known if key.startswith(f"{section}.")), key=len)
    initials = {full: "".join(word[:1] for word in full.split("_")) for full in inside}
    return [
        f"{section}.{full}"
        for full in inside
        if section and (field == initials[full] or (len(field) > 2 and field in full))
    ]


def refuse_sections_without_fields(content: Mapping[str, Any], place: str) -> None:
    """Refuses sections that are a number, a list or nothing. A text must be the name of a file with the fields."""
    options = option_sections(method_in(nested(content)) or "plain", frozenset(content))
    for section, default in {**vars(Config()), **options}.items():
        given = content.get(section, {})
        if not is_dataclass(default) or isinstance(given, Mapping):
            continue
        if not isinstance(given, str):
            raise ConfigError(f"{section} in {place} holds no fields", "give it `field: value` lines, or remove it")
        if not any((folder / Path(given).expanduser()).is_file() for folder in (Path(), Path(place).parent)):
            form = "write `field: value` lines below it, with a blank after each colon"
            if section in _FIRST and not re.search(r"[:=]", given):
                form = f"write `{section}: {{{_FIRST[section]}: {given}}}`"
            raise ConfigError(f"{section} in {place} is the text {given!r}, and not fields with values", form)


def _keys(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in content.items():
        name = f"{prefix}{key}"
        keys += _keys(value, f"{name}.") if isinstance(value, Mapping) and value and "." not in name else [name]
    return keys
