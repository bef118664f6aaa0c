"""Helpers for tests of selections: pools in memory, and a selection by text length."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adapt.config import Config
from adapt.embed.vector_files import chunk_file, write_vectors
from adapt.select.choose import highest
from adapt.select.pool import Document
from adapt.select.selection import Given, Selection, Vectors
from tests.index.clusters import indexed

T = TypeVar("T")


class Listed:
    """A pool made from a list.

    The list is read in this process, `at_once` documents at a time, and passes are counted.
    """

    def __init__(self, documents: Sequence[Document], at_once: int = 10**9) -> None:
        self.documents, self.at_once, self.passes = documents, at_once, 0

    def __iter__(self) -> Iterator[Document]:
        self.passes += 1
        return iter(self.documents)

    def each(self, function: Callable[[Iterator[Document]], T], on_device: bool = False) -> Iterator[T]:
        return self.visit(lambda documents, _: iter([function(documents)]))

    def visit(self, look: Any, hint: Callable[[], Any] = lambda: None, on_device: bool = False) -> Iterator[Any]:
        self.passes += 1
        for first in range(0, max(len(self.documents), 1), self.at_once):
            some = iter(self.documents[first : first + self.at_once])
            yield from (seen for seen in look(some, hint()) if seen is not None)

    def narrowed(self, ids: np.ndarray) -> "Listed":
        return Listed([each for each in self.documents if each.id in set(ids.tolist())], self.at_once)


def numbered(texts: Iterable[str], first: int = 0, apart: int = 1, at_once: int = 10**9) -> Listed:
    """Returns a pool of texts whose ids start at `first` and increase by `apart`."""
    return Listed([Document(text, first + apart * n) for n, text in enumerate(texts)], at_once)


def given(pool: Any, target: Sequence[str] = (), **more: Any) -> Given:
    return Given(pool, target, more.pop("config", Config()), **more)


def embedded(folder: Path, pool: np.ndarray, ids: np.ndarray, target: np.ndarray, kind: str = "flat") -> Vectors:
    """Writes an index of the pool's vectors and a file of the target's vectors, in the format that stages use."""
    for name in ("pool", "target"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    indexed(folder / "pool", ids, pool, kind)
    write_vectors(folder / "target" / chunk_file(0, 0), np.arange(len(target)), target.astype(np.float16), {})
    return Vectors(folder / "pool", folder / "target", "toy")


def ranked(selection: Selection, pool: Any, target: Sequence[str], **more: Any) -> list[tuple[int, float]]:
    """Returns ids and scores of all documents that a selection permits, with the highest score first."""
    selection.learn(given(pool, target, **more))
    return [(id, score) for id, _, score in highest(selection, pool, target, 10**9)]


class Longest(Selection):
    """A selection whose score is the number of characters."""

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        return (float(len(text)) for text in pool)
