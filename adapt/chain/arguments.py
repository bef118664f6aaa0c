"""The command line of dontstop chain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from adapt.config import Config, flat
from adapt.errors import ConfigError
from adapt.job.job import Job
from adapt.job.registry import job_of
from adapt.parse.blanks import refuse_blanks, takes_list
from adapt.parse.keys import nested, note_repeated
from adapt.parse.yaml_file import load_yaml

VERBS = ("run", "plan", "report")
USAGE = (
    "dontstop chain run|plan|status|report|submit|logs|stop FILE [--only set=member,member] [--NAME VALUE]"
    " [--section.field VALUE]"
)


@dataclass(frozen=True)
class Command:
    """What a command line of dontstop chain asks for."""

    verb: str
    file: str
    let: dict[str, str] = field(default_factory=dict)
    """Values that replace those of the file's `let`, by name."""
    common: dict[str, Any] = field(default_factory=dict)
    """Configuration fields that hold for all stages."""
    only: dict[str, list[str]] = field(default_factory=dict)
    """The members to run, by the name of their set."""


def read_job(arguments: Sequence[str]) -> tuple[Job, list[str]]:
    """The job that `plan --job sequence --config FILE` looks at, and its arguments.

    Raises:
        ConfigError: there is no such job.
    """
    job, rest = "dapt", list(arguments)
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--job":
            job = value if equals else next(iter(arguments[index + 1 :]), "")
            rest = [*arguments[:index], *arguments[index + (1 if equals else 2) :]]
    return job_of(job), rest


def read_command(arguments: Sequence[str]) -> Command:
    """Reads `run FILE --only task=acl_arc --data /data --resources.workers 2`.

    Raises:
        ConfigError: an unknown verb, no file, or an option without value.
    """
    verb, file = (*arguments[:2], "", "")[:2]
    if verb not in VERBS or not file or file.startswith("--"):
        raise ConfigError(f"cannot read the command {' '.join(arguments[:2]) or '(none)'}", f"use: {USAGE}")
    command = Command(verb, file)
    fields, given = flat(Config()), dict[str, str]()
    for name, value in _options(arguments[2:]):
        if name != "only":
            note_repeated(name, value, given, takes_list(name, ""))
        if name == "only":
            of_set, _, members = value.partition("=")
            command.only.setdefault(of_set, []).extend(members.split(","))
        elif "." in name or name in fields:
            command.common[name] = _read(name, value)
        else:
            command.let[name] = value
    refuse_blanks(nested(command.common), "", lambda keys: " on the command line")
    return command


def _read(name: str, value: str) -> Any:
    try:
        return load_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--{name}: cannot read {value}", "put text with special characters in quotes") from error


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    named, rest = [], [argument for argument in arguments if argument != "--debug"]
    while rest:
        option = rest.pop(0)
        name, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not (equals or rest):
            raise ConfigError(f"cannot read {option}", f"use: {USAGE}")
        named.append((name, value if equals else rest.pop(0)))
    return named
