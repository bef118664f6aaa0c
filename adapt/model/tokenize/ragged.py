"""Lists of unequal lengths, stored in flat arrays with several columns, such as the tokens of each document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

IDS, WORDS, BEGINS, ENDS, SPECIAL = "ids", "words", "begins", "ends", "special"
"""Columns of tokenized texts. There is always the id of each token. If word starts are needed, the other columns are
whether a word starts with the token, the offsets of the token's beginning and end in the text [characters], and whether
it is a special token. Special tokens have the offsets (0, 0)."""
TYPES = {IDS: np.uint32, WORDS: np.bool_, BEGINS: np.int64, ENDS: np.int64, SPECIAL: np.bool_}


@dataclass(frozen=True)
class Ragged:
    """Lists in flat arrays. In each column, list i has the values from index bounds[i] up to bounds[i + 1]."""

    bounds: np.ndarray
    """Where each list begins, and where the last one ends, int64 [lists + 1]."""
    columns: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, lengths: Sequence[int] | np.ndarray, columns: Mapping[str, Sequence[int] | np.ndarray]) -> "Ragged":
        """Builds lists from their lengths, and from the concatenated lists of each column."""
        bounds = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return cls(bounds, {name: np.asarray(values, TYPES[name]) for name, values in columns.items()})

    @classmethod
    def joined(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """Concatenates one or more objects of this class."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([np.diff(part.bounds) for part in parts])
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        return cls.of(lengths, columns)

    def take(self, numbers: np.ndarray) -> "Ragged":
        """Returns the lists with these indices, in the order of the indices."""
        begins = self.bounds[numbers]
        lengths = self.bounds[numbers + 1] - begins
        bounds = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        indices = np.repeat(begins - bounds[:-1], lengths)
        indices += np.arange(bounds[-1])
        return Ragged(bounds, {name: values[indices] for name, values in self.columns.items()})

    def where(self, chosen: np.ndarray) -> "Ragged":
        """Returns the lists for which `chosen` (bool [lists]) is True. Faster than `take` if most lists are chosen."""
        if chosen.all():
            return self
        lengths = np.diff(self.bounds)
        inside = np.repeat(chosen, lengths)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[chosen])])
        return Ragged(bounds, {name: values[inside] for name, values in self.columns.items()})

    def lists(self, name: str) -> list[np.ndarray]:
        """Returns all lists of a column, as views."""
        values, ends = self.columns[name], self.bounds.tolist()
        return [values[begin:end] for begin, end in pairwise(ends)]

    def same(self, other: "Ragged") -> bool:
        """Whether this object and `other` have the same lists in all columns."""
        return np.array_equal(self.bounds, other.bounds) and all(
            np.array_equal(values, other.columns[name]) for name, values in self.columns.items()
        )
