"""From YAML files and the command line to a checked configuration; both go the same way."""

import json
import re
from argparse import SUPPRESS, ArgumentError
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from adapt.config import Config, section_of
from adapt.config.kinds import DAPT, Kind
from adapt.errors import ConfigError
from adapt.method.table import option_sections
from adapt.parse.blanks import refuse_blanks
from adapt.parse.keys import (
    OPTIONS,
    method_in,
    nested,
    read_given,
    refuse_sections_without_fields,
    refuse_unknown_values,
)
from adapt.parse.values import check_config, check_section
from adapt.parse.yaml_file import load_yaml
from adapt.without import absent

with absent("attrs", "pydantic", "typeshed_client"):  # classes of theirs, which are not among ours, and types of C code
    from jsonargparse import ArgumentParser, Namespace, set_loader, set_parsing_settings

YAML = "dontstop"
"""What jsonargparse calls our way of reading YAML."""
set_loader(YAML, load_yaml, (yaml.YAMLError,))

__all__ = ["check", "parse", "parse_values"]

SHOWING = "-h", "--help", "--print_config"
"""Options that print all fields."""
PAIR = "[int, int]"
"""What messages call a pair of numbers."""
TYPES = ("str", "int", "float", "bool", "list", "dict", "null", PAIR)
"""What messages call types; all else are values."""
TEXTS = {each.name for each in fields(Config) if each.type in (str, "str")}
"""Fields that stand in no section and take any string."""


def parse(arguments: Sequence[str], program: str, kind: Kind = DAPT) -> Config:
    """The configuration of a job.

    Args:
        arguments: without the program's name. `--help` and `--print_config` print and end the process.
        program: for the usage line.
        kind: of the job.

    Raises:
        ConfigError: unreadable file, unknown key (names the nearest), wrong type or value, fields that contradict.
    """
    given = read_given(arguments)
    arguments = _without_tilde(arguments)
    method = method_in(given) or _default_method(kind)
    shows = any(argument.startswith(SHOWING) for argument in arguments)
    taken = None if shows else frozenset({*given, *_default_sections(kind)})
    parser = _parser(program, kind, method, _gives_length(given), taken)
    if any(map(_needs_defaults, arguments)):
        return _config(_instantiated(parser, lambda: parser.parse_args(list(arguments))), kind, method)
    read = partial(parser.parse_args, list(arguments), defaults=False)
    return _config(_instantiated(parser, lambda: _over_defaults(parser, read())), kind, method)


def parse_values(values: Mapping[str, Any], kind: Kind, place: str) -> Config:
    """The configuration of a job whose fields a chain file gives. Sections that come again are not parsed again.

    Args:
        values: sections with their fields, or fields by dotted name.
        kind: of the job.
        place: where the values stand, as messages name it.

    Raises:
        ConfigError: as `parse`.
    """
    refuse_sections_without_fields(values, place)
    refuse_unknown_values(values, place)
    given = nested(values)
    try:
        method, has_length = method_in(given) or _default_method(kind), _gives_length(given)
        refuse_blanks(given, method, lambda keys: "")
        found: dict[str, Any] = {}
        for name in dict.fromkeys([*given, *_default_sections(kind)]):
            if name in TEXTS and isinstance(given.get(name), str):  # such as the name, which every job has another of
                found[name] = given[name]
                continue
            content = json.dumps(given[name], default=str) if name in given else ""
            found |= _section(kind, method, has_length, name, content)
        return _config(found, kind, method)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.fix) from error


@lru_cache(maxsize=4096)
def _section(kind: Kind, method: str, has_length: bool, name: str, content: str) -> dict[str, Any]:
    """A section, or a field that stands in none, by its name; frozen, so that several configurations may have it.

    Args:
        kind: of the job.
        method: as of `_parser`.
        has_length: as of `_parser`.
        name: of the section or field.
        content: what is given of it, as JSON; empty for nothing.
    """
    parser = _parser(f"dontstop {kind.name}", kind, method, has_length, frozenset([name]))
    given = {name: json.loads(content)} if content else {}
    return _instantiated(parser, lambda: _over_defaults(parser, parser.parse_object(given, defaults=False)))


def _without_tilde(arguments: Sequence[str]) -> list[str]:
    """The arguments with `~` expanded in the names of configuration files: shells leave it in `--config=~/job.yaml`."""
    expanded = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if before == "--config":
            argument = str(Path(argument).expanduser())
        elif argument.startswith("--config=~"):
            argument = f"--config={Path(argument.removeprefix('--config=')).expanduser()}"
        expanded.append(argument)
    return expanded


def _needs_defaults(argument: str) -> bool:
    """Whether it prints the defaults, or adds to the default of a list, as `--finetune.seeds+=5` does."""
    return argument.startswith("--print") or argument.partition("=")[0].endswith("+")


def _over_defaults(parser: ArgumentParser, given: Namespace) -> Namespace:
    """What was given, and defaults for the rest. jsonargparse, asked for both, checks each default again and again."""
    values = deepcopy(_defaults(parser))
    values.update(given)
    return values


@lru_cache
def _defaults(parser: ArgumentParser) -> Namespace:
    defaults: Namespace = parser.parse_object({})
    return defaults


def _instantiated(parser: ArgumentParser, read: Callable[[], Namespace]) -> dict[str, Any]:
    """Sections by their names, as they are read."""
    try:
        values = parser.instantiate(read())
    except ArgumentError as error:
        what, fix = _in_words(str(error))
        see = f"see `{parser.prog} --help`"
        raise ConfigError(what, f"{fix} ({see})" if fix else see) from error
    return {name: values[name] for name in vars(values)}


def _config(values: Mapping[str, Any], kind: Kind, method: str) -> Config:
    """A checked configuration of what was read of each section."""
    sections = option_sections(method, frozenset(values))
    options = {name: values[name] for name in sections if name in values}
    for name, section in options.items():  # methods that are not chosen are checked too
        check_section(name, section)
    chosen = section_of(method)
    method_options = options[chosen] if chosen in options else sections[chosen]() if chosen in sections else None
    given = {each.name: values[each.name] for each in fields(Config) if each.name in values}
    config = Config(**given, method_options=method_options)
    check_config(config, kind)
    return config


def _default_method(kind: Kind) -> str:
    """What a job does against forgetting where nothing is said of it."""
    return str(kind.defaults.get("method.kind", "plain"))


def _default_sections(kind: Kind) -> set[str]:
    """The sections of which a job has defaults of its own."""
    return {name.partition(".")[0] for name in kind.defaults}


def _gives_length(sections: Mapping[str, Any]) -> bool:
    """Whether a run is as long as some epochs, tokens or FLOPs; a job's default number of steps then gives way."""
    training = sections.get("training")
    return isinstance(training, Mapping) and any(training.get(name) for name in ("epochs", "max_tokens", "max_flops"))


@lru_cache
def _parser(program: str, kind: Kind, method: str, has_length: bool, given: frozenset[str] | None) -> ArgumentParser:
    """The parser of what is given: to build that of a section takes milliseconds, and the others keep their defaults.

    Args:
        program: for the usage line.
        kind: of the job.
        method: whose options are known beside those of our own.
        has_length: whether the job's own number of steps gives way.
        given: sections, and fields that stand in none, that it knows; None for all of them, with their help.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=given is None)
    usage = f"{program} [--config FILE] [--section.field VALUE ...]"
    parser = ArgumentParser(
        prog=program, usage=usage, description=kind.description, exit_on_error=False, parser_mode=YAML
    )
    parser.add_argument("--config", action="config", help="YAML file with any of the fields below; may be repeated.")
    parser.add_argument("--debug", action="store_true", help="Show stack traces of errors.")
    formats = "plain, or json: a line of JSON with time, run, stage, rank, message."
    parser.add_argument("--log_format", default=SUPPRESS, help=formats)  # read by `adapt.console` before all else
    no_default = {"training.max_steps"} if has_length else set()
    whole, sections = {each.name for each in fields(Config)}, option_sections(method, given)
    taken = {*whole, *sections} if given is None else given
    defaults = {
        name: value
        for name, value in kind.defaults.items()
        if name not in no_default and name.partition(".")[0] in taken
    }
    parser.add_class_arguments(Config, skip={OPTIONS, *(whole - taken)})
    for name, options in sections.items():
        if name in taken:
            parser.add_class_arguments(options, name)
    parser.set_defaults(defaults)
    return parser


def _first_lines(message: str) -> str:
    kept = [line.strip() for line in message.splitlines() if line.strip() and "errors.pydantic.dev" not in line]
    return " ".join(kept[:4])


def _in_words(message: str) -> tuple[str, str]:
    """jsonargparse's wrong-type message as one line: the field, what it takes, what it got; and how to mend it."""
    field = re.findall(
        r'Parser key "(.+?)":', message
    )  # for an entry of a list, the message names the list and the field
    kinds = re.findall(r"Expected an? (?:<class '(?:NoneType|(\w+))'>|typing\.Literal\[(.+?)\])", message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if not (field and kinds and value):
        return _first_lines(message), ""
    named = (PAIR if name == "tuple" else name or literal.replace("'", "") or "null" for name, literal in kinds)
    words = list(dict.fromkeys(named))
    return f"{', in an entry: '.join(field)} takes {' or '.join(words)}, not {value[1]}", _mended(words, value[1])


def _mended(words: list[str], value: str) -> str:
    """What a value of the wrong type was probably meant to be, or nothing.

    Args:
        words: the types that the field takes, or the values, separated by commas.
        value: what was given.
    """
    choices = [choice for each in words if each not in TYPES for choice in each.split(", ")]
    same = [choice for choice in choices if choice.lower() == value.lower()]
    if near := same or get_close_matches(value, choices, 1):
        return f"did you mean {near[0]}?"
    is_plain = bool(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|inf|nan|True|False", value))
    if words[0] == "str" and is_plain:
        return "put the value in quotes, so that YAML reads it as text"
    if words[0] == "dict":
        return "write {option: value}"
    if "list" in words and not value.startswith(("[", "{", "'")):
        return f"write a list: [{value}]"
    if words[0] == "bool":
        return "write true or false"
    if "int" in words and re.fullmatch(r"[-+]?\d+\.0", value):
        return f"write it as a whole number: {value[:-2]}"
    if {"int", "float"} & {*words} and re.match(r"[-+]?[\d.]", value) and not is_plain:
        return "write the number in digits, without a unit and without commas, such as 10000 or 0.05"
    return ""
