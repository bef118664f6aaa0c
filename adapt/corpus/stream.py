"""Training batches as they reach a rank: read from the shards by Ray Data, in an order that never depends on how."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from adapt.corpus.order import samples
from adapt.corpus.tokens import TokenStream
from adapt.runtime import data_settings
from adapt.schema import SHARD_GLOB

BLOCK_TOKENS = 1_000_000
"""Tokens that one reading task hands over (2 to 4 MB)."""
PREFETCHED_STEPS = 8


@dataclass(frozen=True)
class Feed:
    """Which batches a rank is to get."""

    folder: str
    """Folder of the prepared corpus."""
    sequence_length: int
    global_batch_size: int
    seed: int
    first_step: int
    last_step: int
    """Exclusive."""
    rank: int
    world: int

    def step(self, step: int) -> dict[str, np.ndarray]:
        """The rank's share of one step's global batch.

        Returns:
            tokens [rows, sequence_length], lengths, epochs and row numbers [rows].
        """
        stream = _stream(self.folder)
        epochs, rows = samples(
            step, self.rank, self.world, self.global_batch_size, stream.rows(self.sequence_length), self.seed
        )
        tokens, lengths = stream.take(rows.tolist(), self.sequence_length)
        return {"tokens": tokens, "lengths": lengths, "epochs": epochs, "rows": rows}

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches, read in this process (for a machine without Ray)."""
        for step in range(self.first_step, self.last_step):
            yield self.step(step)


@lru_cache(maxsize=4)
def _stream(folder: str) -> TokenStream:
    return TokenStream.open(Path(folder), SHARD_GLOB)


@dataclass(frozen=True)
class Fetch:
    """The Ray Data task: a run of steps in, their rows out."""

    feed: Feed

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the steps, one after another."""
        steps = [self.feed.step(step) for step in range(int(batch["first"][0]), int(batch["stop"][0]))]
        return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


@contextmanager
def streamed(feed: Feed) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """The feed's batches, read ahead of training by Ray Data tasks anywhere on the cluster."""
    import ray.data

    if feed.first_step >= feed.last_step:
        yield iter(())
        return
    share = feed.global_batch_size // feed.world
    steps_per_block = max(1, BLOCK_TOKENS // (share * feed.sequence_length))
    firsts = range(feed.first_step, feed.last_step, steps_per_block)
    with data_settings():
        # items and not a range: reading a range takes a CPU, which the training workers may all hold. One task at a
        # time, on no CPU, is ahead of any training; without that limit Ray starts processes by the dozen.
        blocks = [{"first": first, "stop": min(first + steps_per_block, feed.last_step)} for first in firsts]
        dataset = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map_batches(
            Fetch(feed), batch_size=1, batch_format="numpy", num_cpus=0, compute=ray.data.TaskPoolStrategy(size=1)
        )
        batches = dataset.iter_batches(batch_size=share, batch_format="numpy", prefetch_batches=PREFETCHED_STEPS)
        yield iter(batches)
