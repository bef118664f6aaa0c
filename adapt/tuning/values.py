"""The values of a trial: in the name of its stages, and as a file that every job takes."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import yaml

from adapt.config import Config, flat
from adapt.job.job_run import Job
from adapt.parse.keys import nested
from adapt.redact import redacted
from adapt.runner.key import canonical

DIGITS = 6
"""Digits of a digest, in names."""


def named_by_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The same with a name that tells its values from others, since a sequence is continued by its name."""
    if not values:
        return config
    return replace(config, name=f"{config.name}-{hashlib.sha256(canonical(values).encode()).hexdigest()[:DIGITS]}")


def settings_of(config: Config, job: Job) -> dict[str, Any]:
    """All that a configuration says beyond the defaults of its job, by section, as YAML writes it down."""
    defaults = {**flat(Config(method=config.method)), **job.kind.defaults}
    told = {
        name: _plain(value) for name, value in flat(config).items() if name not in defaults or value != defaults[name]
    }
    return nested({name: value for name, value in told.items() if not name.startswith("tune.")})


def as_file(settings: Mapping[str, Any]) -> str:
    """Writes settings as YAML for `--config`, without the credentials of addresses."""
    shown = redacted(dict(settings))
    note = (
        ""
        if shown == settings
        else "# Credentials are left out of the addresses below: put them back to use this file.\n"
    )
    return f"{note}{yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}"


def values_in(config: Config, fields_of_space: Iterable[str]) -> dict[str, Any]:
    """What a configuration has for some fields; those of a method that it does not use are left out."""
    told = flat(config)
    return {name: _plain(told[name]) for name in fields_of_space if name in told}


def shown(value: Any) -> str:
    """A value for people."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
