"""The documents of an item, each with its id: a number by which it is found again.

An id is an int64: the number of the item, times 2^32, plus the number of the record in the item, both from 0. Items
follow from the manifest alone (`adapt.corpus.files.sources.items_of`), and a record has its number whatever becomes of
it. So ids rise along a corpus, and neither cleaning, nor what is held out, nor the number of workers changes them.
"""

from collections.abc import Iterator

from adapt.config import CorpusConfig
from adapt.corpus.files.sources import read_slice, slices_of
from adapt.corpus.screening.clean import OPEN, Sieve, clean_numbered
from adapt.corpus.screening.tally import Tally
from adapt.errors import DataError

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
