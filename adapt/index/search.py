"""The index as it is asked: the nearest of all its parts, or of some."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapt.errors import DataError
from adapt.index.build import IndexFacts
from adapt.index.merge import Nearest, merge_nearest
from adapt.index.part import VectorPart
from adapt.index.plan import FLAT_VECTORS
from adapt.index.propose import FIRST_WIDTH, Proposer
from adapt.index.rows import unit_rows
from adapt.index.scan import nearest_of, ranked

QUERIES_AT_ONCE = 2048


@dataclass(frozen=True)
class VectorIndex:
    """An index, or some of its parts."""

    folder: Path
    facts: IndexFacts
    numbers: tuple[int, ...]
    """The parts that are searched."""
    proposers: tuple[Proposer, ...]
    """One for each; none where all vectors are compared."""
    only: np.ndarray | None = None
    """Sorted ids of the vectors that may be found; None for all."""

    @classmethod
    def open(
        cls,
        folder: Path,
        embedder: str | None = None,
        numbers: Sequence[int] | None = None,
        only: np.ndarray | None = None,
    ) -> "VectorIndex":
        """Maps the files of an index.

        Args:
            folder: where it was built.
            embedder: what makes the queries; None to take it on trust.
            numbers: parts to search; all by default.
            only: ids of the vectors that may be found, sorted and each once, int64 [n]; all by default.

        Raises:
            DataError: there is no finished index, or another embedder made its vectors.
            StorageError: a file is missing or broken.
        """
        facts = IndexFacts.load(folder)
        if embedder is not None and embedder != facts.embedder:
            raise DataError(
                f"the index in {folder} holds vectors of the embedder {facts.embedder}, and is asked for those near"
                f" vectors of {embedder}",
                "embed both with one embedder, or build an index of this one's vectors",
            )
        chosen = tuple(range(len(facts.parts)) if numbers is None else numbers)
        for number in chosen:
            VectorPart.open(folder, number)
        flat = compares_all(facts, only)
        proposers = (Proposer.open(facts.plan, folder, number, only is not None) for number in chosen)
        return cls(folder, facts, chosen, () if flat else tuple(proposers), only)

    @property
    def is_exact(self) -> bool:
        """Whether all vectors that may be found are compared."""
        return compares_all(self.facts, self.only)

    def search(self, queries: np.ndarray, k: int, width: int | None = None) -> Nearest:
        """The k nearest vectors of each query by cosine.

        Args:
            queries: [q, d], of any length and floating type.
            k: how many are wanted.
            width: how widely to search (`adapt.index.recall`); no matter where all vectors are compared.

        Returns:
            Distances (1 - cosine, in float64, from 0 to 2), rising, and ids, int64, both [q, k]. Of equal distances the
            smaller id comes first. Where lists hold fewer than k vectors there are inf and -1 at the end.

        Raises:
            DataError: the queries have another dimension or are not finite, or there are fewer than k vectors.
        """
        return self._searched(queries, k, width, self.proposers)

    def search_exactly(self, queries: np.ndarray, k: int) -> Nearest:
        """The same, with all vectors compared."""
        return self._searched(queries, k, None, ())

    def _searched(self, queries: np.ndarray, k: int, width: int | None, proposers: Sequence[Proposer]) -> Nearest:
        rows = unit_rows(queries, self.facts.dimension)
        check_neighbours(k, self.facts.vectors if self.only is None else len(self.only))
        found = []
        for place, number in enumerate(self.numbers):
            part, blocks = VectorPart.open(self.folder, number), []
            among = None if self.only is None else part.positions_of(self.only)
            for start in range(0, max(len(rows), 1), QUERIES_AT_ONCE):
                asked = rows[start : start + QUERIES_AT_ONCE]
                if proposers:
                    wide = width or FIRST_WIDTH[self.facts.kind]
                    blocks.append(ranked(part, asked, proposers[place].candidates(asked, k, wide, among), k))
                else:
                    blocks.append(nearest_of(part, asked, k, among))
                part.let_go()
            found.append((np.concatenate([each[0] for each in blocks]), np.concatenate([each[1] for each in blocks])))
        return merge_nearest(found, k)


def rows_by_id(folder: Path, ids: np.ndarray) -> np.ndarray:
    """The vectors of some documents, of length 1, float16 [n, d].

    Args:
        folder: of the index.
        ids: sorted, all of which it holds, int64 [n].
    """
    facts = IndexFacts.load(folder)
    rows = np.zeros((len(ids), facts.dimension), np.float16)
    for number in range(len(facts.parts)):
        part = VectorPart.open(folder, number)
        positions = part.positions_of(ids)
        rows[np.searchsorted(ids, part.ids[positions])] = part.rows[positions]
        part.let_go()
    return rows


def compares_all(facts: IndexFacts, only: np.ndarray | None) -> bool:
    """Whether a search compares all vectors that may be found: an index of some candidates is no help where few may."""
    return facts.kind == "flat" or (only is not None and len(only) <= FLAT_VECTORS)


def check_neighbours(k: int, vectors: int) -> None:
    """Refuses to look for more vectors than may be found."""
    if not 0 < k <= vectors:
        raise DataError(
            f"{k} neighbours are wanted, and the index holds {vectors} vectors",
            "ask for fewer neighbours, or give a larger pool",
        )
