"""Decides which documents enter a corpus, and counts the documents that are left out, by reason.

A record must pass the blocks of `corpus.cleaning`, the check for evaluation texts, the check for held-out texts, and
the list of duplicates. `Screen` holds these checks for a source. It creates a `Sieve`, the checks for one item of the
source. An item is a part of a corpus that one task reads.

`item_texts` gives each document an id, with which the document can be found again. An id is an int64: the number of the
item times 2^32, plus the number of the record in the item, both from 0. Items depend only on the manifest
(`adapt.corpus.files.manifest.items_of`), and records that are left out have a number too. So ids ascend along a corpus,
and neither cleaning nor held-out documents nor the number of workers change them.
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

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus import decontamination, entities, token_shards
from adapt.corpus.cleaning.cleaning_blocks import Block, Drop, blocks_of, count_change
from adapt.corpus.files.formats import Bad, fix_of
from adapt.corpus.files.manifest import read_slice, slices_of
from adapt.corpus.heldout import Measured
from adapt.runner.files import file_aside
from adapt.support.errors import DataError

NAMED = 3
"""Maximum number of files that an error message names."""


@dataclass
class Tally:
    """Counts of records: the number of kept records, and the numbers of unreadable and dropped records by reason."""

    kept: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    """Number of unreadable records, keyed by reason."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of dropped documents, keyed by reason."""
    changed: dict[str, int] = field(default_factory=dict)
    """Number of changes that cleaning blocks made in the kept documents, keyed by kind of change."""
    first_bad: dict[str, str] = field(default_factory=dict)
    """File and number of the first unreadable record, keyed by reason."""
    ordinals: int = field(default=0, compare=False)
    """Number of documents that pass all blocks and the check for evaluation texts (see `Sieve.duplicates`)."""

    @property
    def seen(self) -> int:
        """Number of all records that were read."""
        return self.kept + sum(self.bad.values()) + sum(self.dropped.values())

    @property
    def unreadable(self) -> str:
        """Text with the number of unreadable records for each reason, and the file and number of the first one."""
        return "; ".join(f"{count} {reason} (first: {self.first_bad[reason]})" for reason, count in self.bad.items())

    @property
    def left_out(self) -> str:
        """Text with the numbers of unreadable and dropped records by reason."""
        return ", ".join(f"{count} {reason}" for reason, count in {**self.bad, **self.dropped}.items())

    def add(self, other: "Tally") -> None:
        """Adds the numbers of records of a later part of the corpus."""
        self.kept += other.kept
        self.ordinals += other.ordinals
        for mine, theirs in (
            (self.bad, other.bad),
            (self.dropped, other.dropped),
            (self.changed, other.changed),
        ):
            for reason, number in theirs.items():
                count_change(mine, reason, number)
        self.first_bad = {**other.first_bad, **self.first_bad}


def check_few_bad(tally: Tally, most: float, records: str = "records") -> None:
    """Checks that the share of unreadable records of a corpus is not above its limit.

    Args:
        tally: counts of all records that were read.
        most: maximum allowed share of unreadable records, `corpus.max_bad_fraction`.
        records: word for the records in the message.

    Raises:
        DataError: the share of unreadable records is larger than `most`.
    """
    bad = sum(tally.bad.values())
    known = fix_of(" ".join(tally.bad))
    if bad > most * tally.seen:
        raise DataError(
            f"{bad} of {tally.seen} {records} are unreadable: {tally.unreadable}",
            f"correct the files{known and f' ({known})'}, or raise corpus.max_bad_fraction (now {most})",
        )


def check_some_left(tally: Tally, files: Sequence[str]) -> None:
    """Checks that at least one document was kept.

    Raises:
        DataError: no document was kept. The message says for which reasons the records were left out.
    """
    if tally.kept:
        return
    named = ", ".join(files[:NAMED]) + (f" and {len(files) - NAMED} more" if len(files) > NAMED else "")
    raise DataError(
        f"no document of {named} is left: all {tally.seen} records were left out ({tally.left_out})"
        if tally.seen
        else f"{named}: there are no records",
        "check the paths, the text field and corpus.cleaning; a pool must contain other text than dev and test",
    )


_SURROGATES = range(0xD800, 0xE000)  # halves of UTF-16 surrogate pairs, which UTF-8 cannot encode
_CONTROL = dict.fromkeys({*range(32), 127, *_SURROGATES} - {*map(ord, "\t\n\v\f\r")})
# replaced by a newline, because removing these characters would join the words around them
_BREAKS = dict.fromkeys(map(ord, "\v\f"), "\n")
_ASCII_CONTROL = bytes(code for code in _CONTROL if code < 128)
_ASCII_BREAKS = bytes.maketrans(b"\v\f", b"\n\n")
_SOME_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

Check = Callable[[Sequence[str]], Sequence[Drop | None]]
"""Function that returns, for each text of a sequence, the reason to drop it, or None."""
Reject = Callable[[str, str, int, str], None]
"""Function that receives a dropped document: the reason, the file, its number in the file (from 1), and the text."""
DUPLICATE = Drop("duplicate")
"""Reason to drop a document that is a copy of an earlier document."""
BATCH_CHARACTERS = 500_000
BATCH_RECORDS = 4096
"""Maximum number of texts in a batch that is cleaned together. A batch ends after BATCH_CHARACTERS characters or
BATCH_RECORDS texts, whichever comes first."""


@dataclass(frozen=True)
class Sieve:
    """The checks that the documents of an item must pass in addition to the blocks of `corpus.cleaning`."""

    contaminated: Check | None = None
    """Check that finds texts of evaluation sets; None if there is no evaluation set. The check is applied to the
    original texts, and again to texts that blocks changed."""
    measured: Check | None = None
    """Check that finds texts on which losses are measured; None if there are none. The check is applied after all
    blocks, to the texts that would be trained on."""
    duplicates: Mapping[int, Drop] = field(default_factory=dict)
    """Reasons of stage `dedup` to drop documents, keyed by ordinal. The ordinal of a document is its number, from 0,
    among the documents of the item that pass all blocks and the check for evaluation texts."""
    reject: Reject | None = None
    """Function that receives each dropped document; None if dropped documents are not written to files."""


OPEN = Sieve()
"""A `Sieve` without checks, which lets all documents pass."""


def clean(
    records: Iterable[str | Bad],
    corpus: CorpusConfig,
    tally: Tally,
    source: str,
    sieve: Sieve = OPEN,
) -> Iterator[str]:
    """Yields the cleaned texts of records. The arguments are those of `clean_numbered`."""
    return (text for _, text in clean_numbered(records, corpus, tally, source, sieve))


def clean_numbered(
    records: Iterable[str | Bad],
    corpus: CorpusConfig,
    tally: Tally,
    source: str,
    sieve: Sieve = OPEN,
) -> Iterator[tuple[int, str]]:
    """Cleans records, and yields each text that passes with the number of its record, from 1.

    Control characters, and white space at the beginning and end, are always removed. All other changes are made by the
    blocks of `corpus.cleaning`. Records are read in batches.

    Args:
        records: the text of each record, or the reason why the record has no text.
        corpus: configuration that names the blocks.
        tally: numbers of kept, unreadable and dropped records so far, to which these records are added.
        source: name of the file, for messages.
        sieve: checks besides the blocks.
    """
    blocks = blocks_of(corpus.cleaning)
    passed = 0
    for batch in _batches(records):
        texts = [_plain(record) for record in batch if not isinstance(record, Bad)]
        verdicts = zip(texts, _verdicts(texts, blocks, sieve), strict=True)
        for number, record in enumerate(batch, start=passed + 1):
            if isinstance(record, Bad):
                count_change(tally.bad, record)
                tally.first_bad.setdefault(record, f"{source}, record {number}")
                continue
            text, (cleaned, has_ordinal, changes) = next(verdicts)
            if not isinstance(cleaned, Drop):
                cleaned = sieve.duplicates.get(tally.ordinals) or cleaned
            tally.ordinals += has_ordinal
            if isinstance(cleaned, Drop):
                count_change(tally.dropped, cleaned)
                if sieve.reject:
                    sieve.reject(cleaned, source, number, text)
                continue
            tally.kept += 1
            for what, count in changes.items():
                count_change(tally.changed, what, count)
            yield number, cleaned
        passed += len(batch)


def _batches(records: Iterable[str | Bad]) -> Iterator[list[str | Bad]]:
    """Yields the records in batches. The first batches are small, for callers that need only a few records."""
    batch: list[str | Bad] = []
    characters, most = 0, 1
    for record in records:
        batch.append(record)
        characters += len(record)
        if characters >= BATCH_CHARACTERS or len(batch) == most:
            yield batch
            batch, characters, most = [], 0, min(2 * most, BATCH_RECORDS)
    yield batch


def _verdicts(
    texts: list[str], blocks: tuple[Block, ...], sieve: Sieve
) -> list[tuple[str | Drop, bool, dict[str, int]]]:
    """Returns, for each text, the cleaned text or the reason to drop it, whether the text gets an ordinal, and changes.

    The changes are the number of changes that blocks made in the text, keyed by kind of change.

    Duplicates are not checked here. A text on which losses are measured is dropped but has an ordinal, because stage
    `dedup` does not check for such texts.
    """
    first = _checked(sieve.contaminated, texts)
    changes: list[dict[str, int]] = [{} for _ in texts]
    cleaned = [known or _passed(text, blocks, own) for text, known, own in zip(texts, first, changes, strict=True)]

    def drop_matches(check: Check | None, positions: list[int]) -> None:
        reasons = _checked(check, [cleaned[position] for position in positions])
        for position, reason in zip(positions, reasons, strict=True):
            cleaned[position] = reason or cleaned[position]

    # checks changed texts again, because HTML entities or boilerplate may have hidden an evaluation text
    if sieve.contaminated:
        changed = (position for position in _kept(cleaned) if cleaned[position] != texts[position])
        drop_matches(sieve.contaminated, list(changed))
    have_ordinals = [not isinstance(text, Drop) for text in cleaned]
    if sieve.measured:
        drop_matches(sieve.measured, _kept(cleaned))
    return list(zip(cleaned, have_ordinals, changes, strict=True))


def _kept(cleaned: list[str | Drop]) -> list[int]:
    return [position for position, text in enumerate(cleaned) if not isinstance(text, Drop)]


def _checked(check: Check | None, texts: list[str]) -> Sequence[Drop | None]:
    return check(texts) if check and texts else [None] * len(texts)


def _passed(text: str, blocks: tuple[Block, ...], changes: dict[str, int]) -> str | Drop:
    """Applies all blocks to a text. Returns the resulting text, or the reason of the first block that drops it.

    Args:
        text: the text.
        blocks: the blocks.
        changes: an empty dictionary, to which the numbers of changes in the text are added, keyed by kind of change.

    Raises:
        DataError: a block returned neither a text nor a `Drop`.
    """
    for block in blocks:
        if not text:
            break
        text = block(text, changes)
        if isinstance(text, Drop):
            return text
        if not isinstance(text, str):
            raise DataError(
                f"block {block.name} of corpus.cleaning returned {text!r:.40}, which is neither a text nor a Drop",
                'return the text, changed or not, or Drop("reason") to leave the document out',
            )
    if changes:
        text = _plain(text)  # removes outer spaces again, because blocks may leave some
    return text or Drop("empty")


def _plain(record: str) -> str:
    """Removes control characters and outer spaces from a record, and moves its entities accordingly."""
    text = _without_control(record).strip()
    return entities.Tagged.of(text, _moved(record, text)) if isinstance(record, entities.Tagged) else text


def _without_control(text: str) -> str:
    """Removes control characters from a text.

    Most texts have no control characters. Searching for control characters first takes a tenth of the time of
    `translate`, and ASCII texts are searched even faster.
    """
    if not text.isascii():
        return text.translate(_CONTROL | _BREAKS) if _SOME_CONTROL.search(text) else text
    encoded = text.encode()
    kept = encoded.translate(_ASCII_BREAKS, _ASCII_CONTROL)
    return text if kept == encoded else kept.decode()


def _moved(record: entities.Tagged, text: str) -> list[entities.Span]:
    """Returns the positions of a record's entities in the text that remains without control characters."""
    kept = list(accumulate((ord(character) not in _CONTROL for character in record), initial=0))
    stripped = kept[-1] - len(record.translate(_CONTROL).lstrip())
    spans = (tuple(min(max(kept[offset] - stripped, 0), len(text)) for offset in span) for span in record.entities)
    return [(start, end) for start, end in spans if start < end]


ITEM_IDS = 2**32
"""Number of ids reserved for each item."""


def id_at(item: int, record: int) -> int:
    """Returns the id of a record.

    Args:
        item: number of the record's item, from 0.
        record: number of the record in the item, from 0.
    """
    return item * ITEM_IDS + record


def place_of(number: int) -> tuple[int, int]:
    """Returns the item number and the record number of an id, both from 0. Records are numbered within the item."""
    return divmod(number, ITEM_IDS)


def item_texts(
    item: int,
    sources: str,
    corpus: CorpusConfig,
    tally: Tally,
    sieve: Sieve = OPEN,
    entity_field: str | None = None,
) -> Iterator[tuple[int, str]]:
    """Yields the id and the text of each document of an item that passes all checks, in order.

    Args:
        item: number of the item.
        sources: slices of the item, as JSON (see `adapt.corpus.files.manifest.items_of`).
        corpus: settings for reading and cleaning the item.
        tally: an empty tally, to which the item's records are added.
        sieve: checks besides the blocks of `corpus.cleaning`.
        entity_field: field of the records that holds entities; None for texts without entities.

    Raises:
        DataError: a file is broken, lacks the field, has changed since it was listed, or has too many records.
        StorageError: the store failed repeatedly.
    """
    for piece in slices_of(sources):
        before = tally.seen
        records = read_slice(piece, corpus, entity_field)
        for number, text in clean_numbered(records, corpus, tally, piece.place, sieve):
            record = before + number - 1
            if record >= ITEM_IDS:
                raise DataError(f"{piece.place} has more than {ITEM_IDS} records", "split the file into several files")
            yield id_at(item, record), text


REJECTS = "rejects"
"""Name of the folder with the dropped documents, one file per item."""


Fetched = Callable[[], decontamination.EvaluationIndex | Measured]
"""Function that returns a check of texts, which may be in Ray's object store. The check's method `many` returns, for
each text, the reason to drop it or None."""


@dataclass(frozen=True)
class Screen:
    """The checks that the documents of a source must pass in addition to the blocks of `corpus.cleaning`."""

    contaminated: Fetched | None = None
    """Returns the check for texts of evaluation sets; None if there is no evaluation set."""
    duplicates: Path | None = None
    """File of stage `dedup` for this source: an Arrow table of `item`, `ordinal` and `reason`, sorted. None if
    duplicates are kept."""
    measured: Fetched | None = None
    """Returns the check for texts on which losses are measured; None if there are none."""
    rejects: Path | None = None
    """Folder for dropped documents, which are written as jsonl.gz with `reason`, `source`, `record` and `text`. None if
    dropped documents are not written."""
    evaluation_texts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of texts in each file of each evaluation set, for the stage's metrics."""

    @contextmanager
    def of(self, item: int) -> Iterator[Sieve]:
        """Yields the checks for the documents of one item.

        Dropped documents are written to the item's own file in `rejects`, if set.
        """
        with _rejects(self.rejects, item) as reject:
            contaminated = self.contaminated().many if self.contaminated else None
            measured = self.measured().many if self.measured else None
            yield Sieve(contaminated, measured, _ordinals(self.duplicates, item), reject)


PASS = Screen()
"""A `Screen` without checks, which lets all documents pass."""


def local_screen(corpus: CorpusConfig, measured: Measured | None = None, duplicates: Path | None = None) -> Screen:
    """Returns the checks of a source that this process reads without Ray. Dropped documents are not written to files.

    Args:
        corpus: configuration that names the evaluation sets (`corpus.decontaminate`), which are read here.
        measured: keys of held-out documents, which must not be trained on and are dropped; None to drop none.
        duplicates: file of stage `dedup` with the duplicates of this source; None to keep duplicates.

    Raises:
        DataError: an evaluation set cannot be read, or is empty.
    """
    contaminated = _returning(decontamination.evaluation_index(corpus)) if corpus.decontaminate else None
    return Screen(contaminated, duplicates, _returning(measured) if measured else None)


def _returning(check: decontamination.EvaluationIndex | Measured) -> Fetched:
    return lambda: check


def _ordinals(file: Path | None, item: int) -> dict[int, Drop]:
    if file is None:
        return {}
    table = token_shards.read_batch(file)
    first, last = np.searchsorted(table.column("item").to_numpy(), [item, item + 1])
    ordinals, reasons = (table.column(name).slice(int(first), int(last - first)) for name in ("ordinal", "reason"))
    return dict(zip(ordinals.to_pylist(), map(Drop, reasons.to_pylist()), strict=True))


@contextmanager
def _rejects(folder: Path | None, item: int) -> Iterator[Reject | None]:
    """Opens the file of dropped documents of an item.

    The file has a temporary name until the block ends, so that a task that is repeated replaces the file of its first
    attempt.
    """
    if folder is None:
        yield None
        return
    path = folder / f"rejects-{item:06d}.jsonl.gz"
    with file_aside(path) as aside, aside.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        yield partial(_write, packed)


def _write(file: gzip.GzipFile, reason: str, source: str, record: int, text: str) -> None:
    line = json.dumps({"reason": reason, "source": source, "record": record, "text": text}, ensure_ascii=False)
    file.write(line.encode("utf-8", "replace") + b"\n")
