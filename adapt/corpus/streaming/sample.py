"""Stage `prepare` of a streamed corpus: a held-out sample, the only text of it that is tokenized beforehand.

The sample is of the documents that the held-out hash picks, which training leaves out wherever they are. It takes them
from items in a fixed random order, from each the first ones up to an equal share (and what earlier items lacked), until
it has enough. So they come from many places, and no more is read than that takes.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adapt.console import log
from adapt.corpus.batches.order import permute
from adapt.corpus.screening.heldout import in_share, keys_of
from adapt.corpus.shards.encode import Encode
from adapt.corpus.shards.legible import Legibility
from adapt.corpus.shards.prepare import batch_of
from adapt.corpus.streaming.online import Online
from adapt.corpus.watch import reading, text_bytes
from adapt.errors import DataError
from adapt.schema import HELDOUT_GLOB

DOCUMENTS = 2000
"""Held-out documents that are looked for."""
PLACES = 64
"""Items that they are taken from, at least, where there are so many."""
ORDER_SEED = 0
"""Seed of the sample. It is not the run's, so that runs with other seeds are measured on the same text."""


def sample_heldout(online: Online, folder: Path) -> dict[str, Any]:
    """Writes the sample into `folder`, as the held-out shards of a prepared corpus.

    Returns:
        heldout_documents and heldout_tokens, how the tokenizer breaks words, and how many texts of each file of
            an evaluation set were looked for.

    Raises:
        DataError: a file is broken, or the whole corpus holds no text.
    """
    for leftover in folder.glob(HELDOUT_GLOB):
        leftover.unlink()
    encode = Encode(online.encode.pretrained, folder, 1.0, online.encode.form)  # all that is picked is held out
    fraction, items = online.encode.heldout_fraction, online.items
    places = min(len(items), PLACES)
    counts, seen, read, total = Counter[str](), 0, 0, DOCUMENTS * len(items)
    sample, chunks = Counter[str](), 0
    with reading("prepare") as line:
        for position, number in enumerate(permute(np.arange(len(items)), len(items), ORDER_SEED, 0).tolist()):
            share = min(DOCUMENTS, -(-DOCUMENTS * (position + 1) // places))  # what one place lacks, the next may give
            left = share - counts["heldout_documents"]
            for chunk in online.read(batch_of(items[number])):
                seen, read = seen + len(chunk.column("texts")[0]), read + text_bytes(chunk)
                if chunks < PLACES:  # of all text that is read, which may have nothing held out
                    sample.update(encode.sample(chunk.to_pylist()[0]["texts"]))
                    chunks += 1
                picked = _picked(chunk, position, fraction, left)
                if documents := len(picked.column("texts")[0]):
                    counts.update(encode(picked).counts)
                left -= documents
                done = max(counts["heldout_documents"] * len(items), position * DOCUMENTS)  # whichever ends first
                line.update(seen, read, min(done, total - 1), total)
                if not left:
                    break
            if counts["heldout_documents"] >= DOCUMENTS:
                break
        line.update(seen, read, total, total)
    if not seen:
        raise DataError(
            f"the corpus is empty after cleaning ({len(items)} parts)",
            "check corpus.paths, corpus.text_field and corpus.cleaning",
        )
    numbers = {name: counts[name] for name in ("heldout_documents", "heldout_tokens")}
    legibility = Legibility.of(sample)
    for fault in legibility.faults():
        log(f"prepare: {fault}")
    return {**numbers, "legibility": legibility, "evaluation_texts": online.read.screen.evaluation_texts}


def _picked(chunk: pa.Table, position: int, fraction: float, most: int) -> pa.Table:
    """The chunk with its first held-out documents only, as of the item at a position."""
    row = chunk.to_pylist()[0]
    pairs = list(zip(row["texts"], json.loads(row["entities"]), strict=True))
    chosen = [pairs[number] for number in np.flatnonzero(in_share(keys_of(row["texts"]), fraction))[:most]]
    texts, entities = [text for text, _ in chosen], [spans for _, spans in chosen]
    changed: dict[str, Any] = {"item": [position], "entities": [json.dumps(entities)]}
    changed["texts"] = pa.array([texts], chunk.schema.field("texts").type)
    return pa.table({**{name: chunk.column(name) for name in chunk.column_names}, **changed})
