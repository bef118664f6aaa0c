"""The search space: fields with the domains of their values. The values of a trial, in names and in files."""

import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from adapt.config import Config, flat
from adapt.job.job_run import Job
from adapt.parse.keys import nested
from adapt.parse.yaml_file import place_in, read_yaml
from adapt.runner.key import canonical
from adapt.support.errors import AdaptError, ConfigError
from adapt.support.nearest import nearest
from adapt.support.redact import redacted

Space = Mapping[str, Any]
"""Domains of Ray Tune (`ray.tune.search.sample.Domain`), by the dotted names of fields."""
DOMAINS = ("uniform", "quniform", "loguniform", "qloguniform", "randint", "qrandint", "lograndint", "qlograndint")
"""Ray Tune's domains that YAML may name, each with the list of its arguments."""
EXAMPLE = "write `training.learning_rate: {loguniform: [1e-5, 1e-3]}`, or a list of values"


def read_space(path: str) -> dict[str, Any]:
    """Reads a space.

    Args:
        path: of a Python file whose one function returns fields and domains, or of a YAML file that names them.

    Raises:
        ConfigError: the file cannot be read, or holds no space.
    """
    given = _from_python(path) if path.endswith(".py") else _from_yaml(path)
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{path} searches no field", f"give it some: {EXAMPLE}")
    return {str(name): _domain(str(name), value, path) for name, value in given.items()}


def _from_python(path: str) -> Any:
    functions = _functions(_loaded(path))
    if len(functions) != 1:
        named = ", ".join(function.__name__ for function in functions) or "none"
        raise ConfigError(
            f"{path} has {len(functions)} functions ({named})", "let it have one, which returns the space"
        )
    try:
        return functions[0]()
    except Exception as error:
        raise ConfigError(f"{path}: {functions[0].__name__}() fails: {error}", "correct the function") from error


def _loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tune_spaces.{Path(path).stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "check the path") from error
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {error}", "correct the file") from error
    return module


def _functions(module: ModuleType) -> list[Callable[[], Any]]:
    """The module's own public functions."""
    found = inspect.getmembers(module, inspect.isfunction)
    return [function for name, function in found if function.__module__ == module.__name__ and name[0] != "_"]


def _from_yaml(path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in read_yaml(path).items():
        if isinstance(value, Mapping) and "." not in str(name):  # a section
            fields |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            fields[str(name)] = value
    for name, value in fields.items():
        if value is None:
            raise ConfigError(f"{name}{place_in(path)([name])} has no value", EXAMPLE)
    return {name: _named(name, value, path) if isinstance(value, Mapping) else value for name, value in fields.items()}


def _named(name: str, value: Mapping[str, Any], path: str) -> Any:
    from ray import tune

    kind, arguments = next(iter(value.items()), ("", []))
    if len(value) > 1 or not isinstance(arguments, list):
        raise ConfigError(f"{name} in {path} has no domain, but {dict(value)}", EXAMPLE)
    if kind not in DOMAINS:
        raise ConfigError(f"{name} in {path}: there is no domain {kind}", nearest(str(kind), DOMAINS))
    try:
        return getattr(tune, kind)(*[_number(each) for each in arguments])
    except (TypeError, ValueError, AdaptError) as error:
        raise ConfigError(f"{name} in {path}: {kind} of {arguments}: {error}", EXAMPLE) from error


def _number(given: Any) -> float:
    """A number, also where YAML takes it for a word, as 1e-5."""
    return given if isinstance(given, int | float) else float(given)


def _domain(name: str, value: Any, path: str) -> Any:
    from ray import tune
    from ray.tune.search.sample import Categorical, Float, Integer

    if isinstance(value, Mapping) and set(value) == {"grid_search"}:
        value = value["grid_search"]
    if isinstance(value, list | tuple):
        value = tune.choice(list(value))
    if not isinstance(value, Categorical | Float | Integer):
        raise ConfigError(f"{name} in {path} has no domain, but {value!r}", EXAMPLE)
    if isinstance(value, Categorical):
        if not value.categories:
            raise ConfigError(f"{name} in {path} has no values", "list some, or remove the field")
    elif not value.lower < value.upper:
        raise ConfigError(
            f"{name} in {path}: {value.lower:g} is not below {value.upper:g}", "give the lower bound first"
        )
    return value


def draw(domain: Any, generator: Any) -> Any:
    """A value of a domain, as plain JSON.

    Args:
        domain: of a field.
        generator: of numpy.
    """
    value = domain.sample(random_state=generator)
    return value.item() if hasattr(value, "item") else value


def ends(domain: Any) -> list[Any]:
    """The values that lie furthest apart: the bounds of numbers, or all that are listed."""
    from ray.tune.search.sample import Integer, Quantized

    if hasattr(domain, "categories"):
        return list(domain.categories)
    is_open = isinstance(domain, Integer) and not isinstance(domain.get_sampler(), Quantized)
    return [domain.lower, domain.upper - 1 if is_open else domain.upper]


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
