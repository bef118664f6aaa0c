"""From YAML files and the command line to a checked configuration; both go the same way."""

import re
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonargparse import ArgumentParser, set_parsing_settings

from adapt.config import Config
from adapt.config.kinds import KINDS, Kind
from adapt.errors import ConfigError
from adapt.parse.keys import nested, refuse_sections_without_fields, refuse_unknown_keys, refuse_unknown_values
from adapt.parse.values import check

__all__ = ["check", "parse", "parse_values"]

set_parsing_settings(docstring_parse_attribute_docstrings=True)


def parse(arguments: Sequence[str], program: str, kind: Kind = KINDS["dapt"]) -> Config:
    """The configuration of a job.

    Args:
        arguments: without the program's name. `--help` and `--print_config` print and end the process.
        program: for the usage line.
        kind: of the job.

    Raises:
        ConfigError: unreadable file, unknown key (names the nearest), wrong type or value, fields that contradict.
    """
    refuse_unknown_keys(arguments)
    parser = _parser(program, kind)
    return _checked(parser, lambda: parser.parse_args(list(arguments)), kind)


def parse_values(values: Mapping[str, Any], kind: Kind, place: str) -> Config:
    """The configuration of a job whose fields a chain file gives.

    Args:
        values: sections with their fields, or fields by dotted name.
        kind: of the job.
        place: for messages.

    Raises:
        ConfigError: as `parse`.
    """
    refuse_sections_without_fields(values, place)
    refuse_unknown_values(values, place)
    parser = _parser(f"jobs/{kind.name}.py", kind)
    try:
        return _checked(parser, lambda: parser.parse_object(nested(values)), kind)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.fix) from error


def _checked(parser: ArgumentParser, read: Callable[[], Any], kind: Kind) -> Config:
    try:
        values = parser.instantiate(read())
    except ArgumentError as error:
        raise ConfigError(_in_words(str(error)), f"see `{parser.prog} --help`") from error
    config = Config(**{name: values[name] for name in Config.__dataclass_fields__})
    check(config, kind)
    return config


@lru_cache
def _parser(program: str, kind: Kind) -> ArgumentParser:
    usage = f"{program} [--config FILE] [--section.field VALUE ...]"
    parser = ArgumentParser(prog=program, usage=usage, description=kind.description, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file with any of the fields below; may be repeated.")
    parser.add_argument("--debug", action="store_true", help="Show stack traces of errors.")
    parser.add_class_arguments(Config)
    parser.set_defaults(dict(kind.defaults))
    return parser


def _first_lines(message: str) -> str:
    kept = [line.strip() for line in message.splitlines() if line.strip() and "errors.pydantic.dev" not in line]
    return " ".join(kept[:4])


def _in_words(message: str) -> str:
    """jsonargparse's wrong-type message as one line: the field, what it takes, what it got."""
    field = re.search(r'Parser key "(.+?)":', message)
    kinds = re.findall(r"Expected an? (?:<class '(?:NoneType|(\w+))'>|typing\.(Literal\[.+\]))", message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if not (field and kinds and value):
        return _first_lines(message)
    words = " or ".join(name or literal or "null" for name, literal in kinds)
    return f"{field[1]} takes {words}, not {value[1]}"
