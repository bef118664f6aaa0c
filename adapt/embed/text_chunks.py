"""Reads texts with their ids, in chunks, in parallel tasks of the cluster.

The documents of a pool have the ids that `adapt.corpus.screening` gives them. Selections use the same ids.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest, numbered_items
from adapt.corpus.heldout import in_share, keys_of
from adapt.corpus.read_progress import Pace
from adapt.corpus.screening import PASS, Screen, Tally, check_few_bad, check_some_left, item_texts
from adapt.support.errors import DataError

EMBEDDED_CHARACTERS = 1_000_000
"""Approximate size of a chunk [characters]."""


ReadChunks = Callable[[dict[str, Any]], Iterator[pa.Table]]
"""Type of functions that read an item (texts that one task reads) and yield its chunks as one-row tables. The argument
describes the item (see `chunk_table`)."""


@dataclass(frozen=True)
class PoolSource:
    """A corpus as a source of texts: its cleaned documents, without the held-out documents."""

    manifest: Manifest
    corpus: CorpusConfig
    measured: tuple[Path, ...] = ()
    """Folders of prepared corpora. Their held-out documents are excluded, because losses are measured on them."""

    def items(self) -> list[dict[str, Any]]:
        """Returns the items of the pool. An item is a file range of limited size that one task reads."""
        return numbered_items(self.manifest, self.corpus)

    def reader(self, folder: Path) -> ReadChunks:
        """Returns the function that reads an item (a file range) and cleans its texts as stage `prepare` does."""
        from adapt.corpus.prepare_corpus import screen_of  # not at the top: prepare_corpus loads Ray

        screen = screen_of(self.corpus, folder, measured=self.measured)
        return ReadPool(self.corpus, screen)

    def pace(self) -> Pace:
        """Returns the sizes of the items, to show reading progress.

        The sizes are computed from the sizes of the files.
        """
        return Pace.of(self.items(), self.manifest, self.corpus)

    def check(self, tally: Tally) -> None:
        """Checks that at most `corpus.max_bad_fraction` of the records are unreadable, and that a record was kept.

        Raises:
            DataError: too many records cannot be read, or no record is left.
        """
        check_few_bad(tally, self.corpus.max_bad_fraction, "records of the pool")
        check_some_left(tally, self.manifest.files)


@dataclass(frozen=True)
class LinesSource:
    """A file that a stage wrote, with one JSON object per line that has an `id` and a `text`."""

    file: Path

    def items(self) -> list[dict[str, Any]]:
        """Returns the file as a single item, so that one task reads it."""
        return [{"item": 0, "sources": str(self.file)}]

    def reader(self, folder: Path) -> ReadChunks:
        """Returns the function that reads the lines of the file."""
        return read_lines

    def pace(self) -> Pace:
        """Returns the size of the file in bytes."""
        return Pace([self.file.stat().st_size], True)

    def check(self, tally: Tally) -> None:
        """Checks nothing, because `read_lines` already raises an error at an unreadable line."""


TextSource = PoolSource | LinesSource


@dataclass(frozen=True)
class ReadPool:
    """Reads and cleans an item of a pool (a part that one task reads). Held-out documents are left out."""

    corpus: CorpusConfig
    screen: Screen = PASS

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Yields the item's chunks. The last chunk has the item's numbers of kept, dropped and unreadable records."""
        item, tally = int(batch["item"][0]), Tally()
        with self.screen.of(item) as sieve:
            texts = item_texts(item, str(batch["sources"][0]), self.corpus, tally, sieve)
            for chunk, (some, is_last) in enumerate(_chunks(texts)):
                heldout = in_share(keys_of([text for _, text in some]), self.corpus.heldout_fraction)
                kept = list(compress(some, ~heldout))
                yield chunk_table(item, chunk, kept, json.dumps(asdict(tally)) if is_last else "")


def total_of(tallies: Iterable[tuple[int, str]]) -> Tally:
    """Adds up the numbers of kept, dropped and unreadable records of all items (parts that one task reads).

    `tallies` has the number of each item, and its tally as JSON (argument `tally` of `chunk_table`).
    """
    total = Tally()
    for _, counts in sorted(tallies):
        total.add(Tally(**json.loads(counts)))
    return total


def read_lines(batch: dict[str, Any]) -> Iterator[pa.Table]:
    """Yields the texts of a file of JSON lines, in chunks.

    Raises:
        DataError: a line has no id or text.
    """
    for chunk, (some, is_last) in enumerate(_chunks(_lines(str(batch["sources"][0])))):
        yield chunk_table(0, chunk, some, "{}" if is_last else "")


def _lines(file: str) -> Iterator[tuple[int, str]]:
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                known = int(record["id"]), str(record["text"])
            except (ValueError, KeyError, TypeError) as error:
                problem = f"{file}, line {number}: cannot read the fields id and text: {error}"
                raise DataError(problem, "write the file again") from error
            yield known


def _chunks(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[list[tuple[int, str]], bool]]:
    """Yields the ids and texts of each chunk, and whether the chunk is the last one. The last chunk may be empty."""
    some: list[tuple[int, str]] = []
    characters = 0
    for number, text in texts:
        some.append((number, text))
        characters += len(text)
        if characters >= EMBEDDED_CHARACTERS:
            yield some, False
            some, characters = [], 0
    yield some, True


def chunk_table(item: int, chunk: int, texts: Sequence[tuple[int, str]], tally: str) -> pa.Table:
    """Returns a chunk as a table of one row.

    Args:
        item: number of the item, the part of the texts that one task reads.
        chunk: number of the chunk within the item.
        texts: ids and texts of the chunk.
        tally: numbers of the item's kept, dropped and unreadable records (`adapt.corpus.screening.Tally`) as JSON if
            the chunk is the item's last one; else "".
    """
    return pa.table(
        {
            "item": [item],
            "chunk": [chunk],
            "ids": pa.array([[number for number, _ in texts]], pa.large_list(pa.int64())),
            "texts": pa.array([[text for _, text in texts]], pa.large_list(pa.large_string())),
            "tally": [tally],
        }
    )
