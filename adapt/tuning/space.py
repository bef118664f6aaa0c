"""Reads a search space: the range or list of values of each searched field. This module imports Ray Tune."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import tune
from ray.tune.search.sample import Categorical, Float, Integer, Quantized

from adapt.parse.yaml_file import place_in, read_yaml
from adapt.support.errors import AdaptError, ConfigError, nearest

DOMAINS = ("uniform", "quniform", "loguniform", "qloguniform", "randint", "qrandint", "lograndint", "qlograndint")
"""Names of Ray Tune's domains that a YAML file may use. Each domain takes a list of arguments."""
EXAMPLE = "write `training.learning_rate: {loguniform: [1e-5, 1e-3]}`, or a list of values"


def read_space(path: str) -> dict[str, Any]:
    """Reads a search space from a file.

    Args:
        path: path of a YAML file with fields and domains, or of a Python file with one function that returns them.

    Raises:
        ConfigError: the file cannot be read, or has no valid space.
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
            f"{path} has {len(functions)} functions ({named})", "define exactly one, which returns the space"
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
    """Returns the public functions that are defined in the module."""
    found = inspect.getmembers(module, inspect.isfunction)
    return [function for name, function in found if function.__module__ == module.__name__ and name[0] != "_"]


def _from_yaml(path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in read_yaml(path).items():
        if isinstance(value, Mapping) and "." not in str(name):  # a section with fields
            fields |= {f"{name}.{field}": domain for field, domain in value.items()}
        else:
            fields[str(name)] = value
    for name, value in fields.items():
        if value is None:
            raise ConfigError(f"{name}{place_in(path)([name])} has no value", EXAMPLE)
    return {name: _named(name, value, path) if isinstance(value, Mapping) else value for name, value in fields.items()}


def _named(name: str, value: Mapping[str, Any], path: str) -> Any:
    kind, arguments = next(iter(value.items()), ("", []))
    if len(value) > 1 or not isinstance(arguments, list):
        raise ConfigError(f"{name} in {path} has no domain, but {dict(value)}", EXAMPLE)
    if kind not in DOMAINS:
        raise ConfigError(f"{name} in {path}: there is no domain {kind}", nearest(str(kind), DOMAINS))
    try:
        return getattr(tune, kind)(*[_number(argument) for argument in arguments])
    except (TypeError, ValueError, AdaptError) as error:
        raise ConfigError(f"{name} in {path}: {kind} of {arguments}: {error}", EXAMPLE) from error


def _number(given: Any) -> float:
    """Converts a value to a number. YAML reads some numbers, such as 1e-5, as strings."""
    return given if isinstance(given, int | float) else float(given)


def _domain(name: str, value: Any, path: str) -> Any:
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


def ends(domain: Any) -> list[Any]:
    """Returns the lowest and highest value of a range, or all values of a list."""
    if hasattr(domain, "categories"):
        return list(domain.categories)
    is_open = isinstance(domain, Integer) and not isinstance(domain.get_sampler(), Quantized)
    return [domain.lower, domain.upper - 1 if is_open else domain.upper]
