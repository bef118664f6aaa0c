"""Turns configurations and fields given in Python into arguments of the command line, so that both are read alike."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from os import PathLike, fspath
from typing import Any

from adapt.config import Config, flat
from adapt.support.errors import ConfigError
from adapt.support.paths import user_path

Source = str | PathLike[str] | Mapping[str, Any] | Config | Sequence[str | PathLike[str]] | None
"""The source of a configuration: YAML files (later files win), a mapping of sections, a `Config`, or None.

A field of a `Config` that has the plain default gets the default of the job."""
_UNLIKE_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that JSON allows in a string, and that YAML refuses or folds."""


def arguments_of(config: Source, fields: Mapping[str, Any]) -> list[str]:
    """Returns command-line arguments for the configuration `config` with the fields in `fields` replaced.

    Fields of a `Config` that equal the plain default, such as the name `dapt`, are left out, so that the job's own
    default applies. To set such a value, name the field in `fields`.

    Raises:
        ConfigError: a configuration file does not exist, or `config` or a value has a type that nothing takes.
    """
    if isinstance(config, Config | Mapping):
        known = _changed(config) if isinstance(config, Config) else flat_fields(config)
        return _options({**known, **flat_fields(fields)})
    if not isinstance(config, str | PathLike | Sequence | None):
        raise _wrong_source(config)
    files = [] if config is None else [config] if isinstance(config, str | PathLike) else list(config)
    for file in files:
        if not isinstance(file, str | PathLike):
            raise _wrong_source(file)
        if not user_path(file).is_file():
            raise ConfigError(f"there is no configuration file {file}", "check the path")
    return [*(f"--config={user_path(file)}" for file in files), *_options(flat_fields(fields))]


def flat_fields(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns fields keyed by dotted name, such as `training.epochs`. The argument may have nested sections."""
    flattened: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flattened |= flat_fields(value, f"{prefix}{name}.")
        elif is_dataclass(value) and not isinstance(value, type):
            flattened |= flat_fields(vars(value), f"{prefix}{name}.")
        else:
            flattened[f"{prefix}{name}"] = value
    return flattened


def yaml_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as YAML would give them: numbers, texts, lists, mappings, true, false and null.

    Raises:
        ConfigError: a value has a type that nothing takes.
    """
    return {name: json.loads(_written(name, value)) for name, value in values.items()}


def _changed(config: Config) -> dict[str, Any]:
    """Returns the fields that differ from the plain defaults, and all options of chosen plug-ins, by dotted name."""
    defaults = flat(Config())
    return {name: value for name, value in flat(config).items() if name not in defaults or value != defaults[name]}


def member_names(only: Mapping[str, Any], sets: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Returns the names of the members to run, keyed by set.

    Args:
        only: a member or several members of each set. A number names the member with the same value.
        sets: names of all members, keyed by set.
    """
    given = {name: [of] if isinstance(of, str | int | float) else list(of) for name, of in only.items()}
    return {name: [_member(each, sets.get(name, ())) for each in members] for name, members in given.items()}


def _member(given: Any, members: Iterable[str]) -> str:
    """Returns the member with a name or, if there is none, the member that is the same number, such as 0.0001."""
    name = str(given)
    return name if name in members else next((member for member in members if _is_same(member, name)), name)


def _is_same(one: str, other: str) -> bool:
    with suppress(ValueError):
        return float(one) == float(other)
    return False


def _wrong_source(given: Any) -> ConfigError:
    return ConfigError(
        f"the configuration is {given!r}, of type {type(given).__name__}",
        "give the path of a YAML file, a list of paths, a mapping of sections, or a dontstop.Config",
    )


def _options(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value if name == 'config' else _written(name, value)}" for name, value in values.items()]


def _written(name: str, value: Any) -> str:
    """Formats a value as JSON, which the command line reads as YAML. Texts are quoted, so that they stay unchanged."""
    try:
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is {value!r}, of type {type(value).__name__}: {error}",
            "give text, a number, true or false, None, a path, a list or a mapping",
        ) from error
    return _UNLIKE_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: Any) -> Any:
    """Converts sections, paths, sets, and numbers and arrays of NumPy to values that JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"no field takes a {type(value).__name__}")
