"""A look at a few texts from all over a large source, before hours go into embedding all of them."""

from itertools import islice
from pathlib import Path
from typing import Any

from adapt.config import ResourcesConfig
from adapt.corpus.shards.prepare import MAX_UNKNOWN_FRACTION
from adapt.embed.base import Embedder
from adapt.embed.sources import ReadChunks, TextSource
from adapt.errors import DataError
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors

LARGE_BYTES = 64_000_000
"""A source with less is embedded about as fast as it is looked at."""
PLACES, TEXTS_A_PLACE = 16, 16
CLEARLY = 2.0
"""A few texts speak against an embedder where they hold so many times what is allowed of all texts."""


def look_first(
    source: TextSource, embedder: Embedder, learnt: Path | None, folder: Path, resources: ResourcesConfig
) -> None:
    """Refuses an embedder that clearly knows too little of a large source, in one task of the cluster.

    Args:
        source: the texts.
        embedder: not loaded yet.
        learnt: folder of what it has learnt.
        folder: of the stage.
        resources: how many GPUs the task has.

    Raises:
        DataError: the embedder knows too little.
        ModelError: the model cannot be used.
    """
    import ray

    if sum(source.pace().sizes) < LARGE_BYTES:
        return
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(_unknown_share)
    with user_errors():
        share = ray.get(task.remote(source.reader(folder), some_of(source.items()), embedder, learnt))
    check_known(share, CLEARLY * MAX_UNKNOWN_FRACTION)


def some_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items evenly from all over."""
    places = min(PLACES, len(items))
    return [items[place * len(items) // places] for place in range(places)]


def check_known(share: float, most: float = MAX_UNKNOWN_FRACTION) -> None:
    """Refuses an embedder to which more than a share of what it is given is unknown.

    Raises:
        DataError: so it is.
    """
    if share > most:
        raise DataError(
            f"the embedder knows nothing of {share:.0%} of what it was given",
            "choose a model whose tokenizer knows this language and script, or an embedder that learns from the pool",
        )


def _unknown_share(read: ReadChunks, items: list[dict[str, Any]], embedder: Embedder, learnt: Path | None) -> float:
    """What the embedder does not know of the first texts of items."""
    hide_unreserved_gpus()
    texts: list[str] = []
    for item in items:
        batch = {name: [value] for name, value in item.items()}
        chunks = (table.to_pylist()[0]["texts"] for table in read(batch))
        texts += islice((text for chunk in chunks for text in chunk), TEXTS_A_PLACE)
    if not texts:
        return 0.0
    embedder.load(learnt)
    found = embedder.embed(texts)
    return found.unknown / max(found.seen, 1)
