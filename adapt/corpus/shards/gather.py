"""Several prepared sources as one corpus to measure on: their held-out shards side by side, and their counts summed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapt.corpus.shards.legible import Legibility
from adapt.runner import Record
from adapt.runner.files import link_or_copy, storage_errors
from adapt.schema import HELDOUT_GLOB


def gather(sources: Sequence[Record], folder: Path) -> dict[str, Any]:
    """Links the held-out shards of some sources into `folder`, in their order, and sums what was counted.

    Returns:
        The sources' metrics that are numbers, summed, and how the tokenizer breaks the words of all sources.
    """
    with storage_errors(folder):
        for number, source in enumerate(sources):
            for shard in sorted(source.path.glob(HELDOUT_GLOB)):
                link_or_copy(shard, folder / shard.name.replace("-", f"-{number:03d}-", 1))
    names = dict.fromkeys(name for source in sources for name in source.metrics)
    values = {name: [source.metrics.get(name, 0) for source in sources] for name in names}
    sums = {name: sum(counts) for name, counts in values.items() if all(type(value) is int for value in counts)}
    legibility = Legibility.together(source.metrics.get("legibility") for source in sources)
    return {**sums, **({"legibility": legibility} if legibility else {})}
