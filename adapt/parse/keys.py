"""Unknown keys are refused, naming the nearest known one."""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from adapt.config import Config, EvaluationSet, NamedModel, SourceConfig, TaskConfig, flat
from adapt.errors import ConfigError
from adapt.method.table import option_sections

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
    for position, argument in enumerate(arguments):
        name, _, value = argument[2:].partition("=")
        following = next(iter(arguments[position + 1 :]), "")
        if not argument.startswith("--"):
            continue
        _refuse_unknown_key(name.rstrip("+"), f"--{name}", method, _NO_FIELDS)
        if name == "config":
            file = value or following
            if not file or file.startswith("--"):
                raise ConfigError("--config names no file", "write --config FILE")
            content = read_yaml(file)
            _refuse_unknown(content, file, method)
            given = _merged(given, nested(content))
            continue
        content = {name.rstrip("+"): _read(value or following)}
        refuse_unknown_entries(content)
        given = _merged(given, nested(content))
    return given


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
        name, _, value = argument.partition("=")
        value = value or next(iter(arguments[position + 1 :]), "")
        if name == "--method.kind":
            method = value
        elif name == "--config":
            with suppress(ConfigError):
                method = method_in(nested(read_yaml(value))) or method
    return method


def _read(text: str) -> Any:
    with suppress(yaml.YAMLError):  # the parser will say so
        return yaml.safe_load(text)
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
    for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        if not isinstance(entry, Mapping):
            continue
        place = f"entry {number} of {name}"
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
    by_field = {key.rsplit(".", 1)[-1]: key for key in known}
    near = difflib.get_close_matches(name, known, 1, 0.6) or [
        by_field[match] for match in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_field, 1, 0.6)
    ]
    fix = f"use one of: {', '.join(sorted(known))}" if len(known) <= SHOWN else "see --help for all keys"
    return ConfigError(f"unknown key {shown}", f"did you mean {near[0]}?" if near else fix)


def read_yaml(path: str) -> Mapping[str, Any]:
    """Reads a file of sections."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        _refuse_repeated(yaml.compose(text, Loader=yaml.SafeLoader), path)
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error)
        raise ConfigError(f"{path} is not valid YAML: {problem}", "correct that line") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} holds no `key: value` lines", "--print_config shows a file of that form")
    refuse_sections_without_fields(content, path)
    return content


def _refuse_repeated(node: yaml.Node | None, path: str) -> None:
    """Refuses keys that stand twice in one place: YAML would silently take the last."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    where = f"in lines {seen[key.value]} and {line}"
                    raise ConfigError(f"{key.value} stands twice in {path}, {where}", "remove one")
                seen[key.value] = line
            _refuse_repeated(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated(item, path)


def refuse_sections_without_fields(content: Mapping[str, Any], place: str) -> None:
    """Refuses sections that are a number, a list or nothing; text is let through, as the name of a file."""
    options = option_sections(method_in(nested(content)) or "plain", frozenset(content))
    for section, default in {**vars(Config()), **options}.items():
        if is_dataclass(default) and not isinstance(content.get(section, {}), Mapping | str):
            raise ConfigError(f"{section} in {place} holds no fields", "give it `field: value` lines, or remove it")


def _keys(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in content.items():
        name = f"{prefix}{key}"
        keys += _keys(value, f"{name}.") if isinstance(value, Mapping) and value and not prefix else [name]
    return keys
