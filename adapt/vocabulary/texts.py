"""The text that words are counted in: what may be trained on of a corpus, from places all over it."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.batches.order import permute
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import items_of, read_slice, slices_of
from adapt.corpus.screening.clean import clean
from adapt.corpus.screening.heldout import in_share, keys_of
from adapt.corpus.screening.tally import Tally, check_few_bad

TOGETHER = 256
"""Documents that are looked at together."""
MEGABYTE = 1_000_000


def corpus_texts(manifest: Manifest, corpus: CorpusConfig, megabytes: float, seed: int = 0) -> Iterator[str]:
    """Documents of a corpus after cleaning, without its held-out share.

    Args:
        manifest: its files.
        corpus: of one source.
        megabytes: about so much text is read, the same of every item of the corpus.
        seed: of the order of the items.

    Raises:
        DataError: a file is broken, or too many of the records that were read.
    """
    items = items_of(manifest, corpus)
    left, tally = megabytes * MEGABYTE, Tally()
    for place, number in enumerate(permute(np.arange(len(items)), max(len(items), 1), seed, 0).tolist()):
        share = left / (len(items) - place)  # what small items leave is for those that follow
        for text in _texts_of(items[number], corpus, tally):
            if share <= 0:
                break
            size = len(text.encode("utf-8", "replace"))
            share, left = share - size, left - size
            yield text
    check_few_bad(tally, corpus.max_bad_fraction)


def _texts_of(item: str, corpus: CorpusConfig, tally: Tally) -> Iterator[str]:
    for part in slices_of(item):
        texts = clean(read_slice(part, corpus), corpus, tally, part.place)
        while some := list(islice(texts, TOGETHER)):
            held_out = in_share(keys_of(some), corpus.heldout_fraction)
            yield from (text for text, is_measured in zip(some, held_out, strict=True) if not is_measured)
