"""From YAML files and the command line to a checked configuration; both go the same way."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from adapt.config import Config, section_of
from adapt.config.job_config import DAPT, Kind
from adapt.config.reading import hints_of, read_fields
from adapt.method.table import option_sections
from adapt.parse.blanks import refuse_blanks
from adapt.parse.command_line import asks_for, read_given
from adapt.parse.keys import OPTIONS, method_in, nested, overlaid, refuse_sections_without_fields, refuse_unknown_values
from adapt.parse.shown import configuration_text, help_text
from adapt.parse.values import check_config, refuse_contradictions
from adapt.support.errors import ConfigError

__all__ = ["check_config", "parse", "parse_values"]


def parse(arguments: Sequence[str], program: str, kind: Kind = DAPT) -> Config:
    """The configuration of a job.

    Args:
        arguments: without the program's name. `--help` and `--print_config` print and end the process.
        program: for the usage line.
        kind: of the job.

    Raises:
        ConfigError: unreadable file, unknown key (names the nearest), wrong type or value, fields that contradict.
    """
    given = read_given(arguments, kind)
    method = _method(given, kind)
    if asks_for(arguments, "--help", "-h"):
        print(help_text(program, kind, option_sections(method), _with_defaults(given, kind)))
        sys.exit(0)
    values = _with_defaults(given, kind)
    see = f"see `{program} --help`"
    if asks_for(arguments, "--print_config"):
        print(configuration_text(_read(values, method, see), option_sections(method)), end="")
        sys.exit(0)
    return _checked(_read(values, method, see), kind, method)


def parse_values(values: Mapping[str, Any], kind: Kind, place: str) -> Config:
    """The configuration of a job whose fields a chain file gives.

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
        method = _method(given, kind)
        refuse_blanks(given, method, lambda keys: "")
        return _checked(_read(_with_defaults(given, kind), method, "see --help"), kind, method)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.fix) from error


def _method(given: Mapping[str, Any], kind: Kind) -> str:
    """The method that is named, or else the job's own."""
    return method_in(given) or str(kind.defaults.get("method.kind", "plain"))


def _with_defaults(given: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """What is given over the job's own defaults, whose number of steps gives way to another length."""
    training = given.get("training")
    has_length = isinstance(training, Mapping) and any(map(training.get, ("epochs", "max_tokens", "max_flops")))
    own = {name: value for name, value in kind.defaults.items() if not (has_length and name == "training.max_steps")}
    return overlaid(nested(own), given)


def _read(values: Mapping[str, Any], method: str, see: str) -> dict[str, Any]:
    """The sections that have values, and fields that stand in none, by name, as instances of their types."""
    kinds = {**hints_of(Config), **option_sections(method, frozenset(values))}
    return {name: read_fields(kinds[name], value, name, see) for name, value in values.items() if name in kinds}


def _checked(read: Mapping[str, Any], kind: Kind, method: str) -> Config:
    """The whole configuration; sections that have no values have their defaults."""
    sections, chosen = option_sections(method, frozenset(read)), section_of(method)
    options = read[chosen] if chosen in sections and chosen in read else None
    if options is None and chosen in sections:
        options = sections[chosen]()
    own = {each.name: read[each.name] for each in fields(Config) if each.name in read and each.name != OPTIONS}
    config = Config(**own, method_options=options if is_dataclass(options) else None)
    refuse_contradictions(config, kind)
    return config
