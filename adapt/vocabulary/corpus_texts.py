"""Reads a sample of a corpus's training text in one process. Equal parts are read from all items (file ranges)."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import items_of
from adapt.corpus.heldout import Measured, in_share, keys_of
from adapt.corpus.sample_order import permute
from adapt.corpus.screening import PASS, Screen, Tally, check_few_bad, item_texts, local_screen

TOGETHER = 256
"""Number of documents whose keys are computed at once."""
MEGABYTE = 1_000_000


def corpus_texts(
    manifest: Manifest,
    corpus: CorpusConfig,
    megabytes: float,
    seed: int = 0,
    measured: Measured | None = None,
    duplicates: Path | None = None,
) -> Iterator[str]:
    """Yields documents of a corpus that stage `prepare` would also use for training.

    The held-out share, and documents that contain a text of `corpus.decontaminate`, are always left out.

    Args:
        manifest: the files of the corpus.
        corpus: the configuration of one source.
        megabytes: about this much text is read, in equal parts from every item of the corpus.
        seed: seed of the order of the items.
        measured: keys of documents that are used for evaluation, which are left out.
        duplicates: result of stage `dedup` for this source; duplicates are left out.

    Raises:
        DataError: a file or an evaluation set is broken, or too many of the records that were read are unusable.
    """
    items, screen = items_of(manifest, corpus), local_screen(corpus, measured, duplicates)
    left, total = megabytes * MEGABYTE, Tally()
    for index, number in enumerate(permute(np.arange(len(items)), max(len(items), 1), seed, 0).tolist()):
        share = left / (len(items) - index)  # the unused share of small items goes to later items
        tally = Tally()
        for text, is_held_out in _item_texts(number, items[number], corpus, tally, screen):
            if share <= 0:
                break
            if is_held_out:
                continue
            size = len(text.encode("utf-8", "replace"))
            share, left = share - size, left - size
            yield text
        total.add(tally)
    check_few_bad(total, corpus.max_bad_fraction)


def measured_in(manifest: Manifest, corpus: CorpusConfig) -> Measured:
    """Reads a whole corpus that is used for evaluation, and returns the keys of its held-out documents.

    Args:
        manifest: the files of the corpus.
        corpus: the configuration of one source; `heldout_fraction` is the share that is measured.

    Raises:
        DataError: a file is broken, or too many records are unusable.
    """
    total, keys = Tally(), [np.zeros(0, np.uint64)]
    for number, item in enumerate(items_of(manifest, corpus)):
        tally = Tally()
        texts = [text for text, is_held_out in _item_texts(number, item, corpus, tally, PASS) if is_held_out]
        keys.append(keys_of(texts))
        total.add(tally)
    check_few_bad(total, corpus.max_bad_fraction)
    return Measured(np.unique(np.concatenate(keys)))


def _item_texts(
    number: int, item: str, corpus: CorpusConfig, tally: Tally, screen: Screen
) -> Iterator[tuple[str, bool]]:
    """Yields each document of an item that passes the checks of `screen`, and whether it is held out."""
    with screen.of(number) as sieve:
        texts = (text for _, text in item_texts(number, item, corpus, tally, sieve))
        while some := list(islice(texts, TOGETHER)):
            yield from zip(some, in_share(keys_of(some), corpus.heldout_fraction).tolist(), strict=True)
