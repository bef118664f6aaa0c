"""Entities of a text: given in the corpus as places in characters, or found by a tagger of the user's."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from adapt.config.kinds import Kinds
from adapt.support.errors import DataError

Span = tuple[int, int]
"""[start, end) in characters."""


class Tagger(ABC):
    """Finds the entities of texts. A user's own inherits from it: a configuration can name no other code.

    It is made without arguments, once in each process that reads text. Its source enters the keys of stages.
    """

    @abstractmethod
    def entities(self, text: str) -> Iterable[Span]:
        """Finds the entities of a text.

        Args:
            text: a clean document.

        Returns:
            Their positions [start, end) in characters.
        """


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


TAGGERS: Kinds[type[Tagger]] = Kinds("objective.tagger", {}, base="adapt.corpus.entities:Tagger")
"""The taggers: none is built in."""


@lru_cache(maxsize=1)
def _loaded(kind: type[Tagger]) -> Tagger:
    """The tagger of this process: it may read a model when it is made."""
    return kind()


def tagged(texts: list[str], name: str) -> list[list[Span]]:
    """The entities that a tagger finds in each text.

    Args:
        texts: clean texts.
        name: of the tagger.

    Raises:
        ConfigError: there is no such tagger.
        DataError: the tagger fails, or gives what are no places in the text; names the text.
    """
    kind = TAGGERS.load(name)
    try:
        tagger = _loaded(kind)
    except Exception as error:  # it is the user's code
        raise DataError(f"objective.tagger {name} cannot be made: {error!r}", "correct its __init__") from error
    spans = []
    for text in texts:
        try:
            entities = parse_entities(tagger.entities(text), len(text))
        except Exception as error:  # it is the user's code
            raise DataError(f"objective.tagger {name} failed on {text[:80]!r}: {error!r}", "correct it") from error
        if entities is None:
            raise DataError(
                f"objective.tagger {name} did not return pairs [start, end) for {text[:80]!r}",
                "let it return whole numbers with 0 <= start < end <= len(text)",
            )
        spans.append(entities)
    return spans
