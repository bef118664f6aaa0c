"""Reads the entities of a text from the corpus, as positions in characters, or finds them with the user's tagger."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from adapt.config.kinds import Kinds
from adapt.support.errors import DataError

Span = tuple[int, int]
"""Position [start, end) of an entity in its text [characters]."""


class Tagger(ABC):
    """Finds the entities of texts. A user's tagger must inherit from this class to be named in a configuration.

    The tagger is created without arguments, once in each process that reads text. Its source code is part of stage
    keys, so a change of the code makes stages run again.
    """

    @abstractmethod
    def entities(self, text: str) -> Iterable[Span]:
        """Finds the entities of a text.

        Args:
            text: a cleaned document.

        Returns:
            The positions [start, end) of the entities in characters.
        """


class Tagged(str):
    """A text with its entities. Cleaning blocks that change the text also update the positions of the entities."""

    entities: list[Span]

    @classmethod
    def of(cls, text: str, entities: list[Span]) -> "Tagged":
        """Returns a text with the given entities."""
        tagged = cls(text)
        tagged.entities = entities
        return tagged


def parse_entities(value: Any, characters: int) -> list[Span] | None:
    """Returns the entities of a text as a list of pairs; None if they are malformed.

    Args:
        value: value from a record or a tagger, which should be pairs [start, end) in characters; None for no entities.
        characters: length of the text [characters].
    """
    try:
        pairs = [(start, end) for start, end in (value or ())]
    except (TypeError, ValueError):
        return None
    well = all(type(start) is type(end) is int and 0 <= start < end <= characters for start, end in pairs)
    return pairs if well else None


def without_overlaps(entities: Iterable[Span]) -> list[Span]:
    """Sorts entities from left to right and removes overlaps.

    If entities overlap, only the entity that starts first is kept. If several start there, the longest is kept.
    """
    kept: list[Span] = []
    for start, end in sorted(entities, key=lambda span: (span[0], -span[1])):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


TAGGERS: Kinds[type[Tagger]] = Kinds("objective.tagger", {}, base="adapt.corpus.entities:Tagger")
"""Registry of taggers. It is empty, because no tagger is built in: a configuration names the user's class."""


@lru_cache(maxsize=1)
def _loaded(kind: type[Tagger]) -> Tagger:
    """Returns the tagger of this process. It is created only once per process, because it may load a model."""
    return kind()


def tagged(texts: list[str], name: str) -> list[list[Span]]:
    """Returns the entities that a tagger finds in each text.

    Args:
        texts: cleaned texts.
        name: name of the tagger, as `module:Class`.

    Raises:
        ConfigError: there is no such tagger.
        DataError: the tagger fails, or returns positions outside a text. The message quotes the text.
    """
    kind = TAGGERS.load(name)
    try:
        tagger = _loaded(kind)
    except Exception as error:  # the user's code may raise any error
        raise DataError(
            f"objective.tagger {name} cannot be created: {error!r}", "correct the __init__ of the tagger"
        ) from error
    spans = []
    for text in texts:
        try:
            entities = parse_entities(tagger.entities(text), len(text))
        except Exception as error:  # the user's code may raise any error
            raise DataError(
                f"objective.tagger {name} failed on {text[:80]!r}: {error!r}", "correct the tagger"
            ) from error
        if entities is None:
            raise DataError(
                f"objective.tagger {name} did not return pairs [start, end) for {text[:80]!r}",
                "return pairs of whole numbers with 0 <= start < end <= len(text)",
            )
        spans.append(entities)
    return spans
