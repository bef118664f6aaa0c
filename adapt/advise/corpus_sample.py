"""Draws a random sample from a corpus that is not prepared, and estimates the size of the corpus."""

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.files.formats import DOCUMENTS, MIB, TABLES, format_of
from adapt.corpus.files.manifest import Manifest, Slice, items_of, read_slice, slices_of
from adapt.corpus.sample_order import permute
from adapt.corpus.screening import Sieve, Tally, clean, local_screen

SAMPLED = 2000
"""Maximum number of documents read per text and of examples read per task."""
READ_BYTES = 64 * MIB
"""Approximate size of the text that is read. A smaller corpus is read completely, so that its size is exact."""
PLACES = 64
"""Minimum number of items (such as files) from which the sample is taken, if the corpus has this many items."""
SEED = 0


@dataclass(frozen=True)
class Sample:
    """Documents drawn from a corpus, and the size of the whole corpus.

    A size is None if it cannot be known without reading the whole corpus.
    """

    texts: list[str]
    """The documents, in random order."""
    documents: int | None
    """Number of documents in the corpus, after cleaning."""
    bytes: int | None
    """Size of the text of all documents in the corpus, after cleaning [bytes of UTF-8]."""
    is_exact: bool
    """True if `documents` and `bytes` were counted, False if they are estimates."""


def sample_corpus(manifest: Manifest, corpus: CorpusConfig, most: int) -> Sample:
    """Reads and cleans a corpus, or parts of it, and draws documents from the parts that were read.

    Documents that contain a text of `corpus.decontaminate` are left out, as in training.

    The size of the whole corpus is estimated from the share of file bytes that was read. If only the beginning of an
    item (such as a file) was read, this share is estimated too. For this estimate, the texts that were read are written
    as JSON lines, compressed if the file is compressed, and the bytes of these lines are counted.

    Args:
        manifest: the files of the corpus.
        corpus: the configuration of one source.
        most: maximum number of documents to draw.
    """
    screen = local_screen(corpus)
    items = [slices_of(item) for item in items_of(manifest, corpus)]
    sizes = {part.path: part.size for part in manifest.parts} if corpus.source == "files" else {}
    share = READ_BYTES // max(1, min(len(items), PLACES))
    texts: list[str] = []
    read_whole, read, stored = 0, 0, 0
    for number in permute(np.arange(len(items)), max(len(items), 1), SEED, 0).tolist():
        if read >= READ_BYTES:
            break
        with screen.of(number) as sieve:
            # files such as PDF are read to their end: the size of the text does not show which share of a file was read
            are_documents = corpus.source == "files" and format_of(items[number][0].path)[0] in DOCUMENTS
            most_bytes = READ_BYTES if are_documents else share
            beginning, at_end = _beginning(items[number], corpus, most_bytes, sieve)
        read_whole += at_end
        texts += beginning
        read += sum(map(_size, beginning))
        if sizes:
            size = sum((part.stop or sizes[part.path]) - part.start for part in items[number])
            stored += size if at_end else min(size, _stored(beginning, items[number][0].path))
    drawn = random.Random(SEED).sample(texts, min(most, len(texts)))
    if read_whole == len(items):
        return Sample(drawn, len(texts), read, True)
    if not sizes:
        return Sample(drawn, None, None, False)
    scale = sum(sizes.values()) / max(stored, 1)
    return Sample(drawn, round(len(texts) * scale), round(read * scale), False)


def joined_samples(samples: Sequence[Sample]) -> Sample:
    """Returns one sample with the documents of all samples. Its sizes are the sums of the samples' sizes."""
    texts = [text for sample in samples for text in sample.texts]
    random.Random(SEED).shuffle(texts)
    documents = [sample.documents for sample in samples if sample.documents is not None]
    sizes = [sample.bytes for sample in samples if sample.bytes is not None]
    known = len(sizes) == len(samples)
    exact = all(sample.is_exact for sample in samples)
    return Sample(texts, sum(documents) if known else None, sum(sizes) if known else None, exact)


def _beginning(item: list[Slice], corpus: CorpusConfig, most: int, sieve: Sieve) -> tuple[list[str], bool]:
    """Returns the first documents of an item, up to about `most` bytes, and whether these are all of its documents.

    An item is a part of the corpus, such as a file.
    """
    texts: list[str] = []
    read = 0
    for part in item:
        for text in clean(read_slice(part, corpus), corpus, Tally(), part.place, sieve):
            if read >= most:
                return texts, False
            texts.append(text)
            read += _size(text)
    return texts, True


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _stored(texts: list[str], path: str) -> int:
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode("utf-8", "replace")
    kind, compression = format_of(path)
    return len(zlib.compress(lines)) if compression or kind in TABLES else len(lines)
