"""The files of an index: what is known of it, and what finds candidates in its parts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from adapt.index.index_kinds import (
    IndexKind,
    IndexPlan,
    add_candidates,
    plan_index,
    train_candidates,
    training_positions,
)
from adapt.index.parts import VectorPart, check_unique
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError

INDEX_FILE = "index.json"
CENTRE_FILE = "centre.npy"
"""What was taken from all vectors, scaled to length 1, before they were indexed: their mean."""
MEMORY_BYTES = 8 * 2**30
T = TypeVar("T")
Spread = Callable[[Callable[[int], T], Sequence[int]], list[T]]
"""Calls a function with each of some numbers, somewhere, and gives the results in their order."""


@dataclass(frozen=True)
class IndexFacts:
    """What is to be known of an index; it is written last, so an index without it is none."""

    embedder: str
    """What made the vectors: an identity that only vectors of the same space share."""
    dimension: int
    parts: tuple[int, ...]
    """Vectors of each part."""
    kind: IndexKind
    lists: int = 0

    @property
    def vectors(self) -> int:
        """How many there are in all parts."""
        return sum(self.parts)

    @property
    def plan(self) -> IndexPlan:
        """How candidates are found."""
        return IndexPlan(self.kind, self.lists)

    def save(self, folder: Path) -> None:
        """Writes `index.json`."""
        write_atomically(folder / INDEX_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "IndexFacts":
        """Reads what `save` wrote.

        Raises:
            DataError: there is no index.
        """
        try:
            known = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
            return cls(**{**{name.name: known[name.name] for name in fields(cls)}, "parts": tuple(known["parts"])})
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} holds no finished index: {error}", "build the index again") from error


def one_after_another(function: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    """In this process."""
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
    """Builds an index of the parts that `adapt.index.parts.write_part` wrote to a folder.

    Args:
        folder: of the parts, and for the files.
        sizes: vectors of each part.
        embedder: what made the vectors.
        dimension: of the vectors.
        memory_bytes: what a machine that holds all of the index may use for it.
        queries: how many will be asked.
        kind: of index; `auto` chooses (`adapt.index.index_kinds`).
        spread: who indexes the parts.

    Raises:
        DataError: there is no vector, or an id is in two parts.
        ConfigError: there is no such kind.
    """
    if not sum(sizes):
        raise DataError("there is no vector to be found", "check the texts that were embedded")
    _check_apart(folder, len(sizes))
    plan = plan_index(sum(sizes), dimension, memory_bytes, queries, kind)  # type: ignore[arg-type]
    if plan.kind != "flat":
        train_candidates(plan, _rows(folder, sizes, training_positions(sum(sizes), plan)), folder)
        spread(AddCandidates(folder), range(len(sizes)))
    facts = IndexFacts(embedder, dimension, tuple(sizes), plan.kind, plan.lists)
    facts.save(folder)
    return facts


@dataclass(frozen=True)
class AddCandidates:
    """Indexes a part."""

    folder: Path

    def __call__(self, number: int) -> None:
        """Writes its file."""
        add_candidates(VectorPart.open(self.folder, number), self.folder)


def centre_in(folder: Path) -> np.ndarray | None:
    """What is to be taken from vectors that are compared with those of an index, float64 [d]; None for nothing."""
    file = folder / CENTRE_FILE
    return np.load(file, allow_pickle=False) if file.exists() else None


def rows_at(folder: Path, positions: np.ndarray) -> np.ndarray:
    """Vectors of an index, of length 1, by their positions among those of all parts, rising: float16 [n, d]."""
    return _rows(folder, IndexFacts.load(folder).parts, positions)


def _rows(folder: Path, sizes: Sequence[int], positions: np.ndarray) -> np.ndarray:
    ends = list(accumulate(sizes))
    chosen = []
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        first, last = np.searchsorted(positions, [end - size, end])
        part = VectorPart.open(folder, number)
        chosen.append(part.rows[positions[first:last] - (end - size)])
    return np.concatenate(chosen)


def _check_apart(folder: Path, parts: int) -> None:
    """Refuses an id that stands in two parts. Ids that rise from part to part need no second look."""
    ids = [VectorPart.open(folder, number).ids for number in range(parts)]
    ids = [each for each in ids if len(each)]
    if all(earlier.max() < later.min() for earlier, later in pairwise(ids)):
        return
    check_unique(np.concatenate(ids))
