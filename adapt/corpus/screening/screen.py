"""What a reading task needs to let documents pass: the check for evaluation texts, duplicates, a file for rejects."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from adapt.config import CorpusConfig
from adapt.corpus.cleaning.block import Drop
from adapt.corpus.screening.clean import Check, Reject, Sieve
from adapt.corpus.screening.decontaminate import EvaluationIndex, Shared, evaluation_index
from adapt.corpus.screening.heldout import Measured
from adapt.runner.files import file_aside

REJECTS = "rejects"
"""Folder of the dropped documents, one file for each item of reading."""


class Held(Protocol):
    """Holds a check of texts, in this process or in Ray's object store."""

    def fetch(self) -> EvaluationIndex | Measured:
        """Returns the check, whose method `many` gives the reason to drop for each of some texts."""


@dataclass(frozen=True)
class Local:
    """A check that is used in the process that built it."""

    check: EvaluationIndex | Measured

    def fetch(self) -> EvaluationIndex | Measured:
        """Returns the check."""
        return self.check


@dataclass(frozen=True)
class Screen:
    """The same for all items of a source."""

    contaminated: Held | None = None
    """Says which texts an evaluation set knows."""
    duplicates: Path | None = None
    """The file of stage `dedup` for this source: an Arrow table of `item`, `ordinal` and `reason`, sorted."""
    measured: Held | None = None
    """Says which texts are measured."""
    rejects: Path | None = None
    """Folder for what is dropped, as jsonl.gz with `reason`, `source`, `record` and `text`."""
    evaluation_texts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many texts of each file of each evaluation set are looked for, for the record."""

    @contextmanager
    def of(self, item: int) -> Iterator[Sieve]:
        """What the documents of an item must pass."""
        with _rejects(self.rejects, item) as reject:
            yield Sieve(_fetched(self.contaminated), _fetched(self.measured), _ordinals(self.duplicates, item), reject)


PASS = Screen()
"""Lets everything pass."""


def screen_of(
    corpus: CorpusConfig, folder: Path, duplicates: Path | None = None, measured: Sequence[Path] = ()
) -> Screen:
    """The screen of a source; puts what evaluation sets and measured corpora hold into Ray's object store.

    Args:
        corpus: has the evaluation sets and says whether rejects are written.
        folder: of the stage.
        duplicates: what stage `dedup` has found in this source.
        measured: prepared corpora whose measured text is left out.

    Raises:
        DataError: an evaluation set or a measured corpus cannot be read, or a set is empty.
    """
    import ray

    rejects = folder / REJECTS if corpus.write_rejects else None
    known = Shared(ray.put(Measured.of(measured))) if measured else None
    if not corpus.decontaminate:
        return Screen(None, duplicates, known, rejects)
    index = evaluation_index(corpus)
    return Screen(Shared(ray.put(index)), duplicates, known, rejects, index.counts)


def local_screen(corpus: CorpusConfig, measured: Measured | None = None, duplicates: Path | None = None) -> Screen:
    """Returns the screen of a source that this process reads itself, without Ray. It writes no rejects.

    Args:
        corpus: names the evaluation sets (`corpus.decontaminate`), which are read here.
        measured: keys of documents that are measured, and so left out.
        duplicates: what stage `dedup` has found in this source.

    Raises:
        DataError: an evaluation set cannot be read, or is empty.
    """
    return Screen(
        Local(evaluation_index(corpus)) if corpus.decontaminate else None,
        duplicates,
        Local(measured) if measured else None,
    )


def _fetched(held: Held | None) -> Check | None:
    return held.fetch().many if held else None


def _ordinals(file: Path | None, item: int) -> dict[int, Drop]:
    if file is None:
        return {}
    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_file(source).get_batch(0)
    first, last = np.searchsorted(table.column("item").to_numpy(), [item, item + 1])
    ordinals, reasons = (table.column(name).slice(int(first), int(last - first)) for name in ("ordinal", "reason"))
    return dict(zip(ordinals.to_pylist(), map(Drop, reasons.to_pylist()), strict=True))


@contextmanager
def _rejects(folder: Path | None, item: int) -> Iterator[Reject | None]:
    """Written aside, so that a task that is tried again writes the same file again."""
    if folder is None:
        yield None
        return
    path = folder / f"rejects-{item:06d}.jsonl.gz"
    with file_aside(path) as aside, aside.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        yield partial(_write, packed)


def _write(file: gzip.GzipFile, reason: str, source: str, record: int, text: str) -> None:
    line = json.dumps({"reason": reason, "source": source, "record": record, "text": text}, ensure_ascii=False)
    file.write(line.encode("utf-8", "replace") + b"\n")
