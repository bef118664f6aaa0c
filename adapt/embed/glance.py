"""A look at some texts before all are embedded: a model whose tokenizer does not know them is no help."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import ResourcesConfig
from adapt.corpus.shards.prepare import MAX_UNKNOWN_FRACTION
from adapt.embed.base import Embedder
from adapt.embed.sources import ReadChunks, TextSource
from adapt.errors import DataError
from adapt.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors

ITEMS, TEXTS_OF_ITEM = 8, 25
"""So many texts of so many places all over the pool are looked at."""


def check_known(source: TextSource, embedder: Embedder, folder: Path, resources: ResourcesConfig) -> None:
    """Embeds some texts, in one task of the cluster, where an embedder reads a model.

    Raises:
        DataError: the embedder knows too little of them.
    """
    import ray

    if not embedder.reads_model:  # what learns has learnt from these very texts
        return
    items = source.items()
    chosen = (
        [items[place] for place in sorted({place * len(items) // ITEMS for place in range(ITEMS)})] if items else []
    )
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(_counted)
    with user_errors():
        seen, unknown = ray.get(task.remote(embedder, source.reader(folder), chosen))
    refuse_unknown(seen, unknown)


def refuse_unknown(seen: int, unknown: int) -> float:
    """The share that an embedder does not know.

    Raises:
        DataError: it is too large.
    """
    share = unknown / max(seen, 1)
    if share > MAX_UNKNOWN_FRACTION:
        raise DataError(
            f"the embedder knows nothing of {share:.0%} of what it was given",
            "choose a model whose tokenizer knows this language and script, or an embedder that learns from the pool",
        )
    return share


def _counted(embedder: Embedder, read: ReadChunks, items: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """What was looked at in the first texts of some items, and what of it is not known."""
    hide_unreserved_gpus()
    texts: list[str] = []
    for item in items:
        for table in islice(read({name: np.array([value]) for name, value in item.items()}), 1):
            texts += table["texts"][0].as_py()[:TEXTS_OF_ITEM]
    if not texts:
        return 0, 0
    embedder.load(None)
    found = embedder.embed(texts)
    return found.seen, found.unknown
