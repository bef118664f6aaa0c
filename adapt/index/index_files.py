"""Builds the files of an index: `index.json`, which describes the index, and a file per part that finds candidates."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from adapt.index.exact_search import VectorPart, check_unique
from adapt.index.index_kinds import (
    IndexKind,
    IndexPlan,
    add_candidates,
    plan_index,
    train_candidates,
    training_positions,
)
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError

INDEX_FILE = "index.json"
CENTRE_FILE = "centre.npy"
"""Name of the file with the mean of all vectors, each scaled to length 1. The vectors were indexed after this mean was
subtracted from them."""
MEMORY_BYTES = 8 * 2**30
"""Default size of the memory for an index, if one machine holds the whole index [bytes]."""
T = TypeVar("T")
Spread = Callable[[Callable[[int], T], Sequence[int]], list[T]]
"""Type of a function that calls another function with each number of a list, and returns the results in the order of
the list. The calls run in this process or in tasks of the cluster."""


@dataclass(frozen=True)
class IndexFacts:
    """The description of an index in `index.json`. The file is written last, so an index without it is unfinished."""

    embedder: str
    """Identity of the embedder. Only vectors with the same identity can be compared."""
    dimension: int
    parts: tuple[int, ...]
    """Number of vectors in each part."""
    kind: IndexKind
    lists: int = 0

    @property
    def vectors(self) -> int:
        """Number of vectors in all parts."""
        return sum(self.parts)

    @property
    def plan(self) -> IndexPlan:
        """The kind of the index and its number of inverted lists."""
        return IndexPlan(self.kind, self.lists)

    def save(self, folder: Path) -> None:
        """Writes the description to `index.json` in a folder."""
        write_atomically(folder / INDEX_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "IndexFacts":
        """Reads the description that `save` wrote.

        Raises:
            DataError: there is no finished index.
        """
        try:
            known = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
            return cls(**{**{name.name: known[name.name] for name in fields(cls)}, "parts": tuple(known["parts"])})
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} holds no finished index: {error}", "build the index again") from error


def one_after_another(function: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    """Calls a function with each number, one after another, in this process."""
    return [function(number) for number in numbers]


def index_parts(
    folder: Path,
    sizes: Sequence[int],
    embedder: str,
    dimension: int,
    memory_bytes: int = MEMORY_BYTES,
    queries: int = 0,
    kind: IndexKind | str = "auto",
    spread: "Spread[None]" = one_after_another,
) -> IndexFacts:
    """Builds an index of the parts that `adapt.index.exact_search.write_part` wrote to a folder.

    Args:
      folder: folder of the parts, which receives the files of the index.
      sizes: number of vectors in each part.
      embedder: identity of the embedder.
      dimension: dimension of the vectors.
      memory_bytes: memory for the index, on a machine that holds the whole index.
      queries: expected number of queries.
      kind: kind of index. `auto` chooses the kind (`adapt.index.index_kinds`).
      spread: function that calls the indexing for each part, in this process or in tasks of the cluster.

    Raises:
      DataError: there is no vector, there are too few for `kind`, or an id is in two parts.
      ConfigError: there is no such kind.
    """
    if not sum(sizes):
        raise DataError("there is no vector to be found", "check the texts that were embedded")
    _check_distinct(folder, len(sizes))
    plan = plan_index(sum(sizes), dimension, memory_bytes, queries, kind)  # type: ignore[arg-type]
    if plan.kind != "flat":
        train_candidates(plan, _rows(folder, sizes, training_positions(sum(sizes), plan)), folder)
        spread(AddCandidates(folder), range(len(sizes)))
    facts = IndexFacts(embedder, dimension, tuple(sizes), plan.kind, plan.lists)
    facts.save(folder)
    return facts


@dataclass(frozen=True)
class AddCandidates:
    """A function that indexes the part with a given number, in a folder of parts."""

    folder: Path

    def __call__(self, number: int) -> None:
        """Writes the file that finds candidates in part `number`."""
        add_candidates(VectorPart.open(self.folder, number), self.folder)


def centre_in(folder: Path) -> np.ndarray | None:
    """Returns the mean to subtract from the queries of the index in `folder`, float64 [d]. None if there is no mean."""
    file = folder / CENTRE_FILE
    return np.load(file, allow_pickle=False) if file.exists() else None


def rows_at(folder: Path, positions: np.ndarray) -> np.ndarray:
    """Returns the vectors of an index at the given positions, scaled to length 1, float16 [n, d].

    Args:
      folder: folder of the index.
      positions: positions in rising order. They count the vectors of all parts, one part after another.
    """
    return _rows(folder, IndexFacts.load(folder).parts, positions)


def _rows(folder: Path, sizes: Sequence[int], positions: np.ndarray) -> np.ndarray:
    ends = list(accumulate(sizes))
    chosen = []
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        first, last = np.searchsorted(positions, [end - size, end])
        part = VectorPart.open(folder, number)
        chosen.append(part.rows[positions[first:last] - (end - size)])
    return np.concatenate(chosen)


def _check_distinct(folder: Path, parts: int) -> None:
    """Checks that no id is in two parts."""
    ids = [VectorPart.open(folder, number).ids for number in range(parts)]
    ids = [ids_of_part for ids_of_part in ids if len(ids_of_part)]
    # no id is in two parts if the ids of each part are larger than all ids of the previous part
    if all(earlier.max() < later.min() for earlier, later in pairwise(ids)):
        return
    check_unique(np.concatenate(ids))
