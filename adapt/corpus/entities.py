"""Entities of a text: given in the corpus as places in characters, or found by a tagger of the user's."""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from adapt.errors import ConfigError, DataError

Span = tuple[int, int]
"""[start, end) in characters."""
Tagger = Callable[[str], Iterable[Span]]


class Tagged(str):
    """A text that comes with its entities."""

    entities: list[Span]

    @classmethod
    def of(cls, text: str, entities: list[Span]) -> "Tagged":
        """Joins a text and its entities."""
        tagged = cls(text)
        tagged.entities = entities
        return tagged


def parse_entities(value: Any, characters: int) -> list[Span] | None:
    """The entities of a text of so many characters, or None where they are malformed.

    Args:
        value: pairs [start, end) in characters; None for no entities.
        characters: length of the text.
    """
    try:
        pairs = [(start, end) for start, end in (value or ())]
    except (TypeError, ValueError):
        return None
    well = all(type(start) is type(end) is int and 0 <= start < end <= characters for start, end in pairs)
    return pairs if well else None


def apart(entities: Iterable[Span]) -> list[Span]:
    """Entities from left to right without those that overlap an earlier one; of two that start together the longer."""
    kept: list[Span] = []
    for start, end in sorted(entities, key=lambda span: (span[0], -span[1])):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


def load_tagger(name: str) -> Tagger:
    """Imports a tagger.

    Args:
        name: `module:function`.

    Raises:
        ConfigError: there is no such module or function.
    """
    module, _, function = name.partition(":")
    tagger_source(name)
    named = getattr(importlib.import_module(module), function, None)
    if not callable(named):
        raise ConfigError(f"objective.tagger {name}: {module} has no function {function!r}", "check its name")
    tagger: Tagger = named
    return tagger


def tagged(texts: list[str], name: str) -> list[list[Span]]:
    """The entities that a tagger finds in each text.

    Args:
        texts: clean texts.
        name: of the tagger.

    Raises:
        ConfigError: there is no such tagger.
        DataError: it fails, or gives what are no places in the text; names the text.
    """
    tagger = load_tagger(name)
    spans = []
    for text in texts:
        try:
            entities = parse_entities(tagger(text), len(text))
        except Exception as error:  # it is the user's code
            raise DataError(f"objective.tagger {name} failed on {text[:80]!r}: {error!r}", "correct it") from error
        if entities is None:
            raise DataError(
                f"objective.tagger {name} did not return pairs [start, end) for {text[:80]!r}",
                "let it return whole numbers with 0 <= start < end <= len(text)",
            )
        spans.append(entities)
    return spans


def tagger_source(name: str) -> Path | None:
    """The file of a tagger's module, found without running it; None where it is no Python file.

    Raises:
        ConfigError: the name has another form, or there is no such module.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"objective.tagger is {name!r}", "write it as module:function")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(
            f"objective.tagger {name}: there is no module {module}",
            "install it, or add its folder to PYTHONPATH, on every node",
        )
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
