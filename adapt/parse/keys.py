"""Checks keys of the configuration and options of the command line. Error messages name the nearest known key."""

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from adapt.config import (
    Config,
    EvaluationSet,
    NamedModel,
    OwnMtebTask,
    PhaseConfig,
    SourceConfig,
    TaskConfig,
    flat,
    section_of,
)
from adapt.config.kinds import Kinds
from adapt.embed.embedder import EMBEDDERS
from adapt.handover.table import EXPORT_KINDS
from adapt.method.table import METHODS
from adapt.objective.table import OBJECTIVES
from adapt.select.table import SELECTIONS
from adapt.support.errors import ConfigError
from adapt.support.paths import user_path

OPTIONS = frozenset({"method_options", "objective_options", "select_options", "export_options"})
"""The fields that hold the options of the chosen method, objective and selection. Users write a section named after
the method, objective or selection instead."""
TABLES: dict[str, Kinds[Any]] = {
    table.field: table for table in (METHODS, OBJECTIVES, SELECTIONS, EMBEDDERS, EXPORT_KINDS)
}
"""The tables of plug-ins (kinds): methods, objectives, selections, embedders and exports. Each table is keyed by the
field that names one of its kinds. The options of a kind are in the section with the kind's name."""
Named = frozenset[tuple[str, str]]
"""Chosen plug-ins (kinds), as pairs of a field and the kind that it names, such as `method.kind` and `lora`."""
_MOVED = {
    "select.options": "write `dsir: {ngram: 2}`, or --dsir.ngram 2: the section is named after the selection",
    "select.embedder_options": "write `static: {path: …}`, or --static.path …: the section is named after the embedder",
}
"""Removed fields, each with the text that names its replacement."""
ENTRIES = {
    "corpus.sources": SourceConfig,
    "corpus.decontaminate": EvaluationSet,
    "comparison.models": NamedModel,
    "mteb.own": OwnMtebTask,
    "tasks": TaskConfig,
    "training.phases": PhaseConfig,
}
"""Fields that hold a list of sections, each with the class of the sections."""
_FIRST = {
    "corpus": "paths",
    "method": "kind",
    "model": "path",
    "objective": "kind",
    "storage": "root",
    "task": "train",
}
"""For some sections, the field that an error message suggests if a single value is given in place of the section."""
COMMAND_LINE = "the command line"
"""Location of values that are options, for error messages."""
SHOWN = 20
"""Maximum number of names that a message lists."""
_NESTED = {"decontaminate": EvaluationSet}
"""Fields of the classes in `ENTRIES` that are themselves lists of sections, each with the class of the sections."""


@cache
def option_sections(kinds: Named = frozenset(), among: frozenset[str] | None = None) -> dict[str, type[Any]]:
    """Returns the options dataclass of each kind (a method, objective or other plug-in), keyed by its section.

    Args:
        kinds: the chosen kinds, which are always loaded.
        among: names of the sections to return, to avoid loading the classes of all kinds. None means all sections.

    Raises:
        ConfigError: a kind does not exist, cannot be loaded, or is user-defined and has the section name of another
            kind.
    """
    places = {name: (table, name) for table in TABLES.values() for name in table}
    taken = {*Config.__dataclass_fields__, *places}
    for field, name in sorted(kinds):
        if ":" in name and (section := section_of(name)) in taken:
            raise ConfigError(
                f"{field}: the options of {name} need a section `{section}`, but this section name is already used",
                "rename the class",
            )
        taken.add(section_of(name))
        places[section_of(name)] = TABLES[field], name
    wanted = set(places) if among is None else {*among, *(section_of(name) for _, name in kinds)}
    options = {section: table.options(name) for section, (table, name) in places.items() if section in wanted}
    return {section: kind for section, kind in options.items() if kind is not None and fields(kind)}


def known_keys(kinds: Named = frozenset(), among: frozenset[str] | None = None) -> set[str]:
    """Returns the names of all sections, and the dotted names of all fields, including the options of plug-ins (kinds).

    Args:
        kinds: the chosen kinds.
        among: names of the option sections to include. None means all sections.

    Raises:
        ConfigError: in the cases listed at `option_sections`.
    """
    options = option_sections(kinds, among)
    named = {f"{section}.{field.name}" for section, kind in options.items() for field in fields(kind)}
    return {*_own_keys(), *options, *named}


@cache
def _own_keys() -> frozenset[str]:
    """Returns the names of all sections and fields, except the options of methods and other plug-ins."""
    return frozenset({*flat(Config()), *Config.__dataclass_fields__, "debug"} - OPTIONS)


def named_in(given: Mapping[str, Any]) -> Named:
    """Returns the plug-ins (kinds) named in sections and their lists. Values that are not names are checked later."""
    found = set()
    for table in TABLES:
        section, _, field = table.partition(".")
        inside = given.get(section)
        value = inside.get(field) if isinstance(inside, Mapping) else None
        for entry in value if isinstance(value, list) else [value]:
            names = list(entry) if isinstance(entry, Mapping) else [entry]
            found |= {(table, name) for name in names if isinstance(name, str)}
    return frozenset(found)


def overlaid(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two sets of sections. If both sets have a field, the value in the second set is used."""
    overlaid = {name: value for name, value in first.items() if name not in second}
    for name, value in second.items():
        before = first.get(name)
        overlaid[name] = {**before, **value} if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return overlaid


def refuse_unknown_values(content: Mapping[str, Any], place: str, kinds: Named = frozenset()) -> None:
    """Refuses unknown keys in sections with fields, or in fields by dotted name.

    Args:
        content: sections or fields, with their values.
        place: location of the content, for error messages.
        kinds: chosen kinds, whose options are valid keys too. If empty, the kinds that the content chooses are used.
    """
    kinds = kinds or named_in(nested(content))
    for key in _keys(content):
        refuse_unknown_key(key, f"{key} in {place}", kinds)
    refuse_unknown_entries(content)


def refuse_unknown_key(key: str, shown: str, kinds: Named, further: frozenset[str] = frozenset()) -> None:
    """Refuses a key that is neither a section, nor the dotted name of a field, nor in `further`.

    Error messages call the key `shown`.
    """
    if key in _MOVED:
        raise ConfigError(f"unknown key {shown}", _MOVED[key])
    if key not in known_keys(kinds, frozenset([key.partition(".")[0]])) | further:
        raise unknown(shown, key, known_keys(kinds) | further)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Puts fields with dotted names into their sections. If a field occurs twice, the later value is used."""
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
    """Refuses unknown keys and missing required keys in fields that hold a list of sections."""
    for name, kind in ENTRIES.items():
        section, _, field = name.partition(".")
        inside = content.get(section)
        _refuse_entries(content.get(name) or (inside.get(field) if isinstance(inside, Mapping) else None), kind, name)


def _refuse_entries(entries: Any, kind: type, name: str) -> None:
    known = {field.name for field in fields(kind)}
    needed = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]
    form = f"write a list of entries: [{{{', '.join(f'{key}: …' for key in needed or [fields(kind)[0].name])}}}]"
    if isinstance(entries, Mapping):
        raise ConfigError(f"{name} must be a list, but has fields", form)
    for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        place = f"entry {number} of {name}"
        if not isinstance(entry, Mapping):  # for example, the entry is the name of a file
            raise ConfigError(f"{place} is {entry!r}, but must have fields with values", form)
        for key in entry:
            if key not in known:
                raise unknown(f"{key} in {place}", str(key), known)
        for key in needed:
            if key not in entry:
                raise ConfigError(f"{place} has no {key}", f"add `{key}: …`")
        for key in _NESTED.keys() & entry.keys():
            _refuse_entries(entry[key], _NESTED[key], f"{key} in {place}")


def unknown(shown: str, name: str, known: set[str]) -> ConfigError:
    """Returns the error for an unknown key, with the nearest known keys."""
    near = _shortened(name, known)
    if not near and "." not in name:
        # suggests no options of kinds, because many kinds have fields with the same name (l2sp.alpha, derpp.alpha)
        near = [key for key in flat(Config()) if key.endswith(f".{name}") and key in known]
    if not near:
        by_field = {key.rsplit(".", 1)[-1]: key for key in sorted(known, reverse=True)}
        near = difflib.get_close_matches(name, known, 1, 0.6)
        near = near or [
            by_field[match] for match in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_field, 1, 0.6)
        ]
    fix = f"use one of: {', '.join(sorted(known))}" if len(known) <= SHOWN else "see --help for all keys"
    return ConfigError(f"unknown key {shown}", f"did you mean {near[0]}?" if near else fix)


USUAL = {"lr": "learning_rate"}
"""Usual meaning of abbreviations that are the initials of several fields."""


def _shortened(name: str, known: set[str]) -> list[str]:
    """Returns fields of the same section that a name may abbreviate, such as `learning_rate` for `lr`.

    Short names come before long names. If USUAL has a meaning of the abbreviation, this meaning comes first.
    """
    section, _, field = name.lower().rpartition(".")
    names = (key.removeprefix(f"{section}.") for key in known if key.startswith(f"{section}."))
    inside = sorted(names, key=lambda full: (full != USUAL.get(field), len(full)))
    initials = {full: "".join(word[:1] for word in full.split("_")) for full in inside}
    return [
        f"{section}.{full}"
        for full in inside
        if section and (field == initials[full] or (len(field) > 2 and field in full))
    ]


def refuse_sections_without_fields(content: Mapping[str, Any], place: str) -> None:
    """Refuses a section that is a number, a list or empty. If a section is a text, it must be the name of a file."""
    options = option_sections(named_in(nested(content)), frozenset(content))
    for section, default in {**vars(Config()), **options}.items():
        given = content.get(section, {})
        if not is_dataclass(default) or isinstance(given, Mapping):
            continue
        if not isinstance(given, str):
            raise ConfigError(
                f"{section} in {place} has no fields", "write `field: value` lines below it, or remove it"
            )
        if section_file(given, user_path(place).parent) is None:
            form = "write `field: value` lines below it, with a space after each colon"
            first = _FIRST.get(section, "")
            if place == COMMAND_LINE:
                form = f"write --{section}.{first or 'FIELD'} {shlex.quote(given) if first else 'VALUE'}"
            elif first and re.split(r"\s*[:=]", given)[0] not in vars(default):
                form = f"write `{section}: {{{first}: {given}}}`"
            raise ConfigError(f"{section} in {place} is the text {given!r}, but must have fields with values", form)


def section_file(name: str, folder: Path) -> Path | None:
    """Returns the YAML file of a section, looked up in `folder` and in the working folder; None if there is none.

    The name of another file, such as one of text or labelled examples, is the value of a field and not a section.
    """
    if not name.lower().endswith((".yaml", ".yml")):
        return None
    places = (folder / user_path(name), user_path(name))
    return next((place for place in places if place.is_file()), None)


def _keys(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in content.items():
        name = f"{prefix}{key}"
        keys += _keys(value, f"{name}.") if isinstance(value, Mapping) and value and "." not in name else [name]
    return keys
