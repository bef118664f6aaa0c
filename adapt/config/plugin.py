"""Parts that a configuration names (methods, selections): built in, or a user's own by `package.module:Class`."""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from adapt.config.reading import read_fields
from adapt.support.errors import ConfigError
from adapt.support.nearest import nearest

T = TypeVar("T")


def plugged(field: str, name: str, known: Mapping[str, str], base: type[T]) -> type[T]:
    """The class that a field names.

    Args:
        field: of the configuration, for messages.
        name: a key of `known`, or `package.module:Class`.
        known: those built in, each as `package.module:Class`.
        base: what it must be.

    Raises:
        ConfigError: there is no such class, its module cannot be imported, or it is not a `base` or lacks something.
    """
    place = known.get(name, name)
    if ":" not in place:
        own = "package.module:Class for your own"
        others = f"use {', '.join(sorted(known))}, or {own}" if known else f"write {own}"
        raise ConfigError(f"{field}: there is no {name!r}", nearest(name, known, others))
    content = imported(field, place)
    if not (isinstance(content, type) and issubclass(content, base)):
        raise ConfigError(
            f"{field}: {place} is no {base.__name__}", f"let it inherit from {base.__module__}.{base.__name__}"
        )
    if missing := sorted(getattr(content, "__abstractmethods__", ())):
        raise ConfigError(f"{field}: {place} lacks {', '.join(missing)}", "see docs/extension.md for what it must have")
    return content


def imported(field: str, place: str) -> Any:
    """What stands at `package.module:name`.

    Raises:
        ConfigError: the module cannot be imported, or has nothing of that name.
    """
    module, _, name = place.partition(":")
    try:
        content = importlib.import_module(module)
    except Exception as error:  # whatever a user's module does when it is loaded
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{field}: {module} cannot be imported ({reason})",
            "mend the module, or put its folder on PYTHONPATH, also of the cluster's workers",
        ) from error
    if not hasattr(content, name):
        named = [each for each in vars(content) if not each.startswith("_")]
        raise ConfigError(f"{field}: {module} has no {name}", nearest(name, named, "correct the name"))
    return getattr(content, name)


def source_digest(kind: type[Any]) -> str:
    """The digest of the file that defines a class.

    It enters the keys of stages, so that a change of a user's own part is noticed.
    """
    return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()


def read_options(place: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """Options as a configuration gives them.

    Args:
        place: what messages call them: the name of the kind.
        kind: a dataclass.
        given: its fields by name.

    Raises:
        ConfigError: a field is not known, of another type, or out of the range that its annotation names.
    """
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            fix = nearest(name, known) if known else "remove it: there is nothing to set"
            raise ConfigError(f"unknown key {name} in {place}", fix)
    options: T = read_fields(kind, dict(given), place)
    return options
