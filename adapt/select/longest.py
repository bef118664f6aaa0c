"""The longest documents: the simplest selection that reads them."""

from collections.abc import Iterable, Iterator

from adapt.select.base import Selection


class Longest(Selection):
    """A document's score is its number of characters."""

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        """The lengths."""
        return (float(len(text)) for text in pool)
