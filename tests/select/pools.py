"""Pools in memory, for the tests."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from adapt.config import Config
from adapt.embed.written import chunk_file, write_vectors
from adapt.index.build import index_vectors
from adapt.select.base import Given, Selection, Vectors
from adapt.select.highest import highest
from adapt.select.pool import Document


class Listed:
    """Documents of a list, which can be read as often as one likes; it counts how often that was."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents, self.passes = documents, 0

    def __iter__(self) -> Iterator[Document]:
        self.passes += 1
        return iter(self.documents)

    def narrowed(self, ids: np.ndarray) -> "Listed":
        return Listed([each for each in self.documents if each.id in set(ids.tolist())])


def numbered(texts: Iterable[str], first: int = 0, apart: int = 1) -> Listed:
    """Texts with ids."""
    return Listed([Document(text, first + apart * n) for n, text in enumerate(texts)])


def given(pool: Any, target: Sequence[str] = (), **more: Any) -> Given:
    return Given(cast("Iterable[str]", pool), target, more.pop("config", Config()), **more)


def embedded(folder: Path, pool: np.ndarray, ids: np.ndarray, target: np.ndarray, kind: str = "flat") -> Vectors:
    """Vectors as stages leave them: an index of the pool's, and those of the target."""
    for name in ("pool", "target"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    index_vectors([(ids, pool)], folder / "pool", "toy", pool.shape[1], kind=kind, part_vectors=len(ids))
    write_vectors(folder / "target" / chunk_file(0, 0), np.arange(len(target)), target.astype(np.float16), {})
    return Vectors(folder / "pool", folder / "target", "toy")


def ranked(selection: Selection, pool: Any, target: Sequence[str], **more: Any) -> list[tuple[int, float]]:
    """Places and scores of all texts that may be taken, the best first."""
    selection.learn(given(pool, target, **more))
    return [(place, score) for place, _, score in highest(selection, pool, target, 10**9)]
