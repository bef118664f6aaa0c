"""Texts a few at a time: so many that numpy has work, and no more characters than memory should hold arrays of."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
MOST_TEXTS = 512
MOST_CHARACTERS = 500_000
"""A single text may be longer. Hashes, places and shingles take some 50 bytes a character."""


def chunks(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in their order, at most MOST_TEXTS of them and MOST_CHARACTERS characters at a time, and at least one.

    Args:
        items: texts, or what holds one.
        length: the characters of one.
    """
    some: list[T] = []
    characters = 0
    for item in items:
        size = length(item)
        if some and (len(some) == MOST_TEXTS or characters + size > MOST_CHARACTERS):
            yield some
            some, characters = [], 0
        some.append(item)
        characters += size
    if some:
        yield some
