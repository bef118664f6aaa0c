"""Defines tables of the plug-ins (called kinds) that a configuration field may name, such as methods."""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from adapt.config.fields import read_fields
from adapt.support.errors import ConfigError, nearest

T = TypeVar("T")


class Kinds(dict[str, str], Generic[T]):
    """Maps the names of the built-in plug-ins (kinds) of a configuration field to import paths `package.module:name`.

    A user's own kind is named by its import path. The table itself imports nothing; `load` imports a kind.

    Args:
        field: dotted name of the configuration field, for messages.
        places: import paths of the built-in kinds. To add one, write its file and its test, and add a line here.
        base: import path of the class that a user's own kind must inherit from; empty if users cannot add kinds.
        options: import paths of the options of built-in kinds whose modules load large libraries. None if the built-in
            kinds have their options as the attribute `Options`.
    """

    def __init__(
        self, field: str, places: Mapping[str, str], base: str = "", options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(places)
        self.field, self.base, self._options = field, base, options

    def place(self, name: str) -> str:
        """Returns the import path of a kind. A user's own kind is named by its import path."""
        place = self.get(name, name if self.base else "")
        if ":" not in place:
            own = "package.module:Class for your own" if self.base else ""
            others = ", or ".join(filter(None, [", ".join(sorted(self)), own]))
            raise ConfigError(f"{self.field}: there is no {name!r}", nearest(name, self, f"use {others}"))
        return place

    def load(self, name: str) -> T:
        """Imports a kind and returns it.

        Raises:
            ConfigError: no kind has this name, or a user's own kind cannot be imported, does not inherit from the base,
                lacks an abstract method, or has options without defaults.
        """
        place = self.place(name)
        loaded: T = imported(self.field, place)
        if name not in self:
            self._check(place, loaded)
        return loaded

    def read(self, name: str, given: Mapping[str, Any]) -> Any:
        """Returns the options of a kind: an instance of its dataclass `Options`, or None if it has no options.

        Args:
            name: name of the kind.
            given: values of options, keyed by name. Other options have their defaults.
        """
        options = self.options(name)
        if options is None and given:
            raise ConfigError(f"unknown key {next(iter(given))} in {name}", f"remove it: {name} has no options")
        return None if options is None else read_options(name, options, given)

    def options(self, name: str) -> type[Any] | None:
        """Returns the dataclass of a kind's options, or None if the kind has no options."""
        if self._options is not None and name in self:
            place = self._options.get(name)
            return imported(self.field, place) if place else None
        return getattr(self.load(name), "Options", None)

    def source(self, name: str) -> dict[str, str]:
        """Returns a digest of the source code of a user's own kind, for stage keys; empty for built-in kinds."""
        return {} if name in self else {"source": source_digest(self.load(name))}

    def _check(self, place: str, loaded: Any) -> None:
        base = imported(self.field, self.base)
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            fix = f"let it inherit from {base.__module__}.{base.__name__}"
            raise ConfigError(f"{self.field}: {place} is not a subclass of {base.__name__}", fix)
        if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
            what = f"{self.field}: {place} lacks {', '.join(missing)}"
            raise ConfigError(what, "define these methods; docs/develop/extending.md describes them")
        options = getattr(loaded, "Options", None)
        if options is None:
            return
        if not (isinstance(options, type) and is_dataclass(options)):
            raise ConfigError(
                f"{self.field}: {place}.Options is not a dataclass", "make it a frozen dataclass, or set it to None"
            )
        if needed := [f.name for f in fields(options) if f.default is f.default_factory is MISSING]:
            what = f"{self.field}: {place}.Options has no default for {', '.join(needed)}"
            raise ConfigError(what, "give every option a default")


def imported(field: str, place: str) -> Any:
    """Imports and returns the object at `package.module:name`.

    Raises:
        ConfigError: the module cannot be imported, or has no object of that name.
    """
    module, _, name = place.partition(":")
    try:
        content = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{field}: {module} cannot be imported ({reason})",
            "correct the module, or add its folder to PYTHONPATH, also on the cluster's workers",
        ) from error
    if not hasattr(content, name):
        public = [own for own in vars(content) if not own.startswith("_")]
        raise ConfigError(f"{field}: {module} has no {name}", nearest(name, public, "correct the name"))
    return getattr(content, name)


def source_digest(kind: Any) -> str:
    """Returns the SHA-256 digest of the file that defines a class.

    The digest is part of stage keys, so that a change of a user's code reruns the stages that use this code.
    """
    return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()


def read_options(place: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """Reads options from configuration values.

    Args:
        place: name of the kind, for messages.
        kind: the options' dataclass.
        given: values of options, keyed by name. Other options have their defaults.

    Raises:
        ConfigError: a field is unknown, has the wrong type, or is out of the range of its annotation.
    """
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            fix = nearest(name, known) if known else f"remove it: {place} has no options"
            raise ConfigError(f"unknown key {name} in {place}", fix)
    options: T = read_fields(kind, dict(given), place)
    return options
