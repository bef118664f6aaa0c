"""Tables of plug-ins: the kinds that a field of the configuration may name, built in or a user's own."""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from adapt.config.reading import read_fields
from adapt.support.errors import ConfigError, nearest

T = TypeVar("T")


class Kinds(dict[str, str], Generic[T]):
    """The kinds that a field may name, each with its place, `package.module:name`. Only `load` imports it.

    Args:
        field: of the configuration, for messages.
        places: those built in. A further one is its file, its test and a line here.
        base: place of the class that a user's own kind must inherit from; empty where all are built in.
    """

    def __init__(self, field: str, places: Mapping[str, str], base: str = "") -> None:
        super().__init__(places)
        self.field, self.base = field, base

    def place(self, name: str) -> str:
        """Where a kind is: one of the table, or a user's own by `package.module:Class`.

        Raises:
            ConfigError: there is none of this name; names the nearest.
        """
        place = self.get(name, name if self.base else "")
        if ":" not in place:
            own = "package.module:Class for your own" if self.base else ""
            others = ", or ".join(filter(None, [", ".join(sorted(self)), own]))
            raise ConfigError(f"{self.field}: there is no {name!r}", nearest(name, self, f"use {others}"))
        return place

    def load(self, name: str) -> T:
        """Imports a kind.

        Raises:
            ConfigError: there is none of this name, or a user's own cannot be imported, does not inherit from the base,
                lacks something, or has options without defaults.
        """
        place = self.place(name)
        loaded: T = imported(self.field, place)
        if name not in self:
            self._check(place, loaded)
        return loaded

    def read(self, name: str, given: Mapping[str, Any]) -> Any:
        """The options of a kind: an instance of its `Options`, a dataclass, or None where it has none.

        Args:
            name: of the kind.
            given: fields by name; the others have their defaults.

        Raises:
            ConfigError: as `load` and `read_options`.
        """
        options = getattr(self.load(name), "Options", None)
        if options is None and given:
            raise ConfigError(f"unknown key {next(iter(given))} in {name}", "remove it: there is nothing to set")
        return None if options is None else read_options(name, options, given)

    def source(self, name: str) -> dict[str, str]:
        """What the source of a kind adds to the keys of stages: nothing for those built in."""
        return {} if name in self else {"source": source_digest(self.load(name))}

    def _check(self, place: str, loaded: Any) -> None:
        base = imported(self.field, self.base)
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            fix = f"let it inherit from {base.__module__}.{base.__name__}"
            raise ConfigError(f"{self.field}: {place} is no {base.__name__}", fix)
        if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
            what = f"{self.field}: {place} lacks {', '.join(missing)}"
            raise ConfigError(what, "see docs/develop/extending.md for what it must have")
        options = getattr(loaded, "Options", None)
        if options is None:
            return
        if not (isinstance(options, type) and is_dataclass(options)):
            raise ConfigError(f"{self.field}: {place}.Options is no dataclass", "make it a frozen dataclass, or None")
        if needed := [each.name for each in fields(options) if each.default is each.default_factory is MISSING]:
            what = f"{self.field}: {place}.Options: no default for {', '.join(needed)}"
            raise ConfigError(what, "give every option a default")


def imported(field: str, place: str) -> Any:
    """What is at `package.module:name`.

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


def source_digest(kind: Any) -> str:
    """The digest of the file that defines a class.

    It enters the keys of stages, so that a change of a user's own kind is noticed.
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
