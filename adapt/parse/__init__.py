"""Reads YAML files and command lines into a checked configuration. Both kinds of input are read by the same code."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from adapt.config import Config, section_of
from adapt.config.fields import hints_of, read_fields
from adapt.config.job_config import DAPT, Kind
from adapt.parse.command_line import asks_for, configuration_text, help_text, read_given
from adapt.parse.keys import (
    Named,
    named_in,
    nested,
    option_sections,
    overlaid,
    refuse_sections_without_fields,
    refuse_unknown_values,
)
from adapt.parse.values import check_config, refuse_contradictions
from adapt.parse.yaml_file import refuse_variables
from adapt.support.errors import ConfigError

__all__ = ["check_config", "parse", "parse_values"]


def parse(arguments: Sequence[str], program: str, kind: Kind = DAPT) -> Config:
    """Parses the configuration of a job.

    Args:
        arguments: arguments without the program's name. `--help` and `--print_config` print a text and end the process.
        program: name of the program in the usage line of the help.
        kind: kind of the job, with its defaults and its required sections.

    Raises:
        ConfigError: a file cannot be read, a key is unknown (the message names the nearest known key), a type or value
            is wrong, or fields contradict each other.
    """
    values = with_defaults(read_given(arguments), kind)
    kinds = named_in(values)
    if asks_for(arguments, "--help", "-h"):
        print(help_text(program, kind, option_sections(kinds), values))
        sys.exit(0)
    see = f"see `{program} --help`"
    if asks_for(arguments, "--print_config"):
        print(configuration_text(_read(values, kinds, see), option_sections(kinds)), end="")
        sys.exit(0)
    return _checked(_read(values, kinds, see), kind, kinds)


def parse_values(values: Mapping[str, Any], kind: Kind, place: str) -> Config:
    """Parses the configuration of a job from fields in a chain file.

    Args:
        values: sections with their fields, or fields keyed by dotted name.
        kind: kind of the job, with its defaults and its required sections.
        place: location of the values, for error messages.

    Raises:
        ConfigError: the values are wrong, as for `parse`.
    """
    refuse_sections_without_fields(values, place)
    refuse_unknown_values(values, place)
    given = nested(values)
    refuse_variables(given, f"in {place}")
    try:
        content = with_defaults(given, kind)
        kinds = named_in(content)
        return _checked(_read(content, kinds, "see --help"), kind, kinds)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.fix) from error


def with_defaults(given: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Adds the job's defaults to the given values.

    If the given values set a training length, the job's default number of steps is left out. If they set phases, the
    default schedule is left out. If the phases have their own lengths, the default length is left out too.
    """
    training = given.get("training")
    training = training if isinstance(training, Mapping) else {}
    replaced = {"training.max_steps"} if any(map(training.get, ("epochs", "max_tokens", "max_flops"))) else set()
    if phases := training.get("phases"):
        replaced |= {"training.schedule", "training.warmup_fraction", "training.warmup_steps"}
        have_length = isinstance(phases, list) and all(
            isinstance(phase, Mapping) and (phase.get("steps") or phase.get("tokens")) for phase in phases
        )
        replaced |= {"training.max_steps", "training.epochs"} if have_length else set()
    own = {name: value for name, value in kind.defaults.items() if name not in replaced}
    return overlaid(nested(own), given)


def _read(values: Mapping[str, Any], kinds: Named, see: str) -> dict[str, Any]:
    """Builds instances of the sections that have values, and reads the fields outside sections."""
    types = {**hints_of(Config), **option_sections(kinds, frozenset(values))}
    return {name: read_fields(types[name], value, name, see) for name, value in values.items() if name in types}


def _checked(read: Mapping[str, Any], kind: Kind, kinds: Named) -> Config:
    """Builds the whole configuration and checks it. A section without values gets its defaults."""
    config = Config(**{each.name: read[each.name] for each in fields(Config) if each.name in read})
    method, objective = section_of(config.method.kind), section_of(config.objective.kind)
    selecting = named_in({"select": vars(config.select)}) if config.select.pool_paths else ()
    exporting = {section_of(name) for name in config.export.kinds}
    used = {method, objective, *(section_of(name) for _, name in selecting), *exporting}
    sections = option_sections(kinds, frozenset(used))
    options = {name: read.get(name) or sections[name]() for name in sorted(used & {*sections})}
    config = replace(
        config,
        method_options=options.pop(method, None),
        objective_options=options.pop(objective, None),
        select_options={name: dict(vars(chosen)) for name, chosen in options.items() if name not in exporting},
        export_options={name: dict(vars(chosen)) for name, chosen in options.items() if name in exporting},
    )
    refuse_contradictions(config, kind)
    return config
