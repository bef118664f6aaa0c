"""Decides which documents enter a corpus, and counts every document that leaves with its reason.

A record passes the blocks of `corpus.cleaning`, the check for evaluation texts, the check for measured texts, and the
list of duplicates. `Screen` holds these checks for a source and opens a `Sieve` for each item of it.

`item_texts` gives each document an id, by which it is found again. An id is an int64: the number of the item times
2^32, plus the number of the record in the item, both from 0. Items follow from the manifest alone
(`adapt.corpus.files.sources.items_of`), and all records count. So ids rise along a corpus, and neither cleaning, nor
held-out documents, nor the number of workers changes them.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from adapt.config import CorpusConfig
from adapt.corpus.cleaning.block import Block, Drop, count_change
from adapt.corpus.cleaning.catalogue import blocks_of
from adapt.corpus.decontamination import EvaluationIndex, evaluation_index
from adapt.corpus.entities import Span, Tagged
from adapt.corpus.files.formats import Bad, fix_of
from adapt.corpus.files.sources import read_slice, slices_of
from adapt.corpus.heldout import MEASURED, TRAINED, Measured
from adapt.runner.files import file_aside
from adapt.support.errors import DataError

NAMED = 3
"""Files that a message names."""


@dataclass
class Tally:
    """Counts of what was kept and of what left, by reason, with the place of each reason's first case."""

    kept: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    """What blocks changed in the documents that they let pass."""
    first_bad: dict[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """All records."""
        return self.kept + sum(self.bad.values()) + sum(self.dropped.values())

    @property
    def unreadable(self) -> str:
        """How many records could not be read, for which reason, and where the first of each reason is."""
        return "; ".join(f"{count} {reason} (first: {self.first_bad[reason]})" for reason, count in self.bad.items())

    @property
    def left_out(self) -> str:
        """How many records left, by reason."""
        return ", ".join(f"{count} {reason}" for reason, count in {**self.bad, **self.dropped}.items())

    def add(self, other: "Tally") -> None:
        """Adds the counts of another part of the corpus that comes after this one."""
        self.kept += other.kept
        for mine, theirs in (
            (self.bad, other.bad),
            (self.dropped, other.dropped),
            (self.changed, other.changed),
        ):
            for reason, number in theirs.items():
                count_change(mine, reason, number)
        self.first_bad = {**other.first_bad, **self.first_bad}


def check_few_bad(tally: Tally, most: float, records: str = "records") -> None:
    """Refuses text of which more than a share of the records cannot be read.

    Args:
        tally: counts of all records that were read.
        most: the share, `corpus.max_bad_fraction`.
        records: what they are called.

    Raises:
        DataError: there are more.
    """
    bad = sum(tally.bad.values())
    known = fix_of(" ".join(tally.bad))
    if bad > most * tally.seen:
        raise DataError(
            f"{bad} of {tally.seen} {records} are unreadable: {tally.unreadable}",
            f"mend the files{known and f' ({known})'}, or raise corpus.max_bad_fraction (now {most})",
        )


def check_some_left(tally: Tally, files: Sequence[str]) -> None:
    """Refuses files of which no document is left to choose, or to compare with.

    Args:
        tally: counts of all records that were read.
        files: what was read.

    Raises:
        DataError: there is none; says for which reasons the records were left out.
    """
    if tally.kept:
        return
    named = ", ".join(files[:NAMED]) + (f" and {len(files) - NAMED} more" if len(files) > NAMED else "")
    raise DataError(
        f"no document of {named} is left: of {tally.seen} records all were left out ({tally.left_out})"
        if tally.seen
        else f"{named}: there is no record at all",
        "check the paths, the text field and corpus.cleaning; a pool must hold other text than dev and test",
    )


_SURROGATES = range(0xD800, 0xE000)  # halves of a character that was cut in two; no encoding can write them
_CONTROL = dict.fromkeys({*range(32), 127, *_SURROGATES} - {*map(ord, "\t\n\v\f\r")})
_BREAKS = dict.fromkeys(map(ord, "\v\f"), "\n")  # without a break in its place, the words around one would be one
_ASCII_CONTROL = bytes(code for code in _CONTROL if code < 128)
_ASCII_BREAKS = bytes.maketrans(b"\v\f", b"\n\n")
_SOME_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

Check = Callable[[Sequence[str]], Sequence[Drop | None]]
"""For each of some texts the reason why it must leave, if there is one."""
Reject = Callable[[str, str, int, str], None]
"""Takes the reason why a document leaves, its file, its number there from 1 on, and its text."""
DUPLICATE = Drop("duplicate")
BATCH_CHARACTERS = 500_000
BATCH_RECORDS = 4096
"""Texts that are cleaned together: about so many characters, or so many texts."""
_LAST = (DUPLICATE, MEASURED, TRAINED)
"""Reasons why a document leaves that passes all that looks at it alone."""


@dataclass(frozen=True)
class Sieve:
    """What the documents of an item must pass besides the blocks of `corpus.cleaning`."""

    contaminated: Check | None = None
    """Says which texts an evaluation set knows: as they come, and again as the blocks have changed them."""
    measured: Check | None = None
    """Says which texts are measured. It sees them as they would be trained on, after all blocks."""
    duplicates: Mapping[int, Drop] = field(default_factory=dict)
    """What stage `dedup` leaves out, and why, by ordinal: the number among the item's documents that pass all blocks
    and evaluation sets, from 0 on."""
    reject: Reject | None = None
    """Gets what is dropped."""


OPEN = Sieve()
"""Lets everything pass."""


def clean(
    records: Iterable[str | Bad],
    corpus: CorpusConfig,
    tally: Tally,
    source: str,
    sieve: Sieve = OPEN,
) -> Iterator[str]:
    """The texts worth training on. Arguments as of `clean_numbered`."""
    return (text for _, text in clean_numbered(records, corpus, tally, source, sieve))


def clean_numbered(
    records: Iterable[str | Bad],
    corpus: CorpusConfig,
    tally: Tally,
    source: str,
    sieve: Sieve = OPEN,
) -> Iterator[tuple[int, str]]:
    """The same, each with the number of its record, from 1.

    Control characters go; everything else is up to the blocks of `corpus.cleaning`. Records are read some at a time.

    Args:
        records: texts, or reasons why there is none.
        corpus: has the blocks.
        tally: the item's; counted into, also for what is dropped.
        source: the file's name, for the messages.
        sieve: what else they must pass.
    """
    blocks = blocks_of(corpus.cleaning)
    passed = 0
    for batch in _batches(records):
        texts = [_plain(record) for record in batch if not isinstance(record, Bad)]
        verdicts = zip(texts, _verdicts(texts, blocks, tally, sieve), strict=True)
        for number, record in enumerate(batch, start=passed + 1):
            if isinstance(record, Bad):
                count_change(tally.bad, record)
                tally.first_bad.setdefault(record, f"{source}, record {number}")
                continue
            text, cleaned = next(verdicts)
            if sieve.duplicates and not isinstance(cleaned, Drop):
                ordinal = tally.kept + sum(tally.dropped.get(reason, 0) for reason in _LAST)
                cleaned = sieve.duplicates.get(ordinal) or cleaned
            if isinstance(cleaned, Drop):
                count_change(tally.dropped, cleaned)
                if sieve.reject:
                    sieve.reject(cleaned, source, number, text)
                continue
            tally.kept += 1
            yield number, cleaned
        passed += len(batch)


def _batches(records: Iterable[str | Bad]) -> Iterator[list[str | Bad]]:
    """The records, some at a time; few at first, for who wants no more than a few."""
    batch: list[str | Bad] = []
    characters, most = 0, 1
    for record in records:
        batch.append(record)
        characters += len(record)
        if characters >= BATCH_CHARACTERS or len(batch) == most:
            yield batch
            batch, characters, most = [], 0, min(2 * most, BATCH_RECORDS)
    yield batch


def _verdicts(texts: list[str], blocks: tuple[Block, ...], tally: Tally, sieve: Sieve) -> list[str | Drop]:
    """What becomes of each text, duplicates aside: the text as it goes on, or why it leaves."""
    first = _checked(sieve.contaminated, texts)
    cleaned = [known or _passed(text, blocks, tally) for text, known in zip(texts, first, strict=True)]

    def leave(check: Check | None, positions: list[int]) -> None:
        reasons = _checked(check, [cleaned[position] for position in positions])
        for position, reason in zip(positions, reasons, strict=True):
            cleaned[position] = reason or cleaned[position]

    if sieve.contaminated:  # an entity or a boilerplate line may have hidden it
        changed = (position for position in _kept(cleaned) if cleaned[position] != texts[position])
        leave(sieve.contaminated, list(changed))
    if sieve.measured:
        leave(sieve.measured, _kept(cleaned))
    return cleaned


def _kept(cleaned: list[str | Drop]) -> list[int]:
    return [position for position, text in enumerate(cleaned) if not isinstance(text, Drop)]


def _checked(check: Check | None, texts: list[str]) -> Sequence[Drop | None]:
    return check(texts) if check and texts else [None] * len(texts)


def _passed(text: str, blocks: tuple[Block, ...], tally: Tally) -> str | Drop:
    """A text after all blocks, or the first one's reason to drop it."""
    changes: dict[str, int] = {}
    for block in blocks:
        if not text:
            break
        text = block(text, changes)
        if isinstance(text, Drop):
            return text
    if changes:
        text = _plain(text)  # what was mended or taken out may leave spaces at the ends
    if not text:
        return Drop("empty")
    for what, number in changes.items():
        count_change(tally.changed, what, number)
    return text


def _plain(record: str) -> str:
    """A record without control characters and outer spaces, with its entities where they are then."""
    text = _without_control(record).strip()
    return Tagged.of(text, _moved(record, text)) if isinstance(record, Tagged) else text


def _without_control(text: str) -> str:
    """Most text has none, which is seen in a tenth of the time, and sooner in ASCII."""
    if not text.isascii():
        return text.translate(_CONTROL | _BREAKS) if _SOME_CONTROL.search(text) else text
    given = text.encode()
    kept = given.translate(_ASCII_BREAKS, _ASCII_CONTROL)
    return text if kept == given else kept.decode()


def _moved(record: Tagged, text: str) -> list[Span]:
    """Where the entities of a record are in its clean text."""
    kept = list(accumulate((ord(character) not in _CONTROL for character in record), initial=0))
    stripped = kept[-1] - len(record.translate(_CONTROL).lstrip())
    spans = (tuple(min(max(kept[offset] - stripped, 0), len(text)) for offset in span) for span in record.entities)
    return [(start, end) for start, end in spans if start < end]


ITEM_IDS = 2**32
"""Ids of an item."""


def id_at(item: int, record: int) -> int:
    """The id of a record.

    Args:
        item: number of its item, from 0.
        record: its number in the item, from 0.
    """
    return item * ITEM_IDS + record


def place_of(number: int) -> tuple[int, int]:
    """The item of an id, and the number of its record there."""
    return divmod(number, ITEM_IDS)


def item_texts(
    item: int,
    sources: str,
    corpus: CorpusConfig,
    tally: Tally,
    sieve: Sieve = OPEN,
    entity_field: str | None = None,
) -> Iterator[tuple[int, str]]:
    """Id and text of each document of an item that passes, in order.

    Args:
        item: its number.
        sources: what it consists of, as JSON.
        corpus: how it is read and cleaned.
        tally: new; counted into.
        sieve: what documents must pass besides.
        entity_field: of the records, for texts with their entities.

    Raises:
        DataError: a file is broken, lacks the field, has changed since it was listed, or has too many records.
        StorageError: the store failed, again and again.
    """
    for piece in slices_of(sources):
        before = tally.seen
        records = read_slice(piece, corpus, entity_field)
        for number, text in clean_numbered(records, corpus, tally, piece.place, sieve):
            record = before + number - 1
            if record >= ITEM_IDS:
                raise DataError(f"{piece.place} has more than {ITEM_IDS} records", "divide it into several files")
            yield id_at(item, record), text


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
