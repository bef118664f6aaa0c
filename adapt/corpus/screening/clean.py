"""Which documents enter, and which are held out. Every document that leaves does so for a named reason."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from adapt.config import CorpusConfig
from adapt.corpus.cleaning.block import Block, Drop, count_change
from adapt.corpus.cleaning.catalogue import blocks_of
from adapt.corpus.entities import Span, Tagged
from adapt.corpus.files.formats import Bad
from adapt.corpus.screening.heldout import MEASURED, TRAINED
from adapt.corpus.screening.tally import Tally

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
