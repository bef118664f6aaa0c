"""Reads the training batches of a rank from token shards, with Ray Data or in one process. Both give the same order."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import ray.data

from adapt.corpus.sample_order import Mixture, samples
from adapt.corpus.token_shards import TokenStream
from adapt.ray.node_files import pinned_here
from adapt.ray.runtime import data_settings
from adapt.support.schema import SHARD_GLOB

BLOCK_BYTES = 2_000_000
"""Size of the blocks that a reading task passes on [bytes]."""
PREFETCHED_STEPS = 8
"""Number of batches that are fetched ahead of training."""
SEGMENTS = 64
"""Largest number of segments into which a run is cut. Each segment is read by one task."""


@dataclass(frozen=True)
class Feed:
    """Defines the batches that a rank trains on."""

    folders: tuple[str, ...]
    """Folders of the prepared sources."""
    mixture: Mixture
    """Mapping of the samples of the run to rows of the sources."""
    sequence_length: int
    global_batch_size: int
    first_step: int
    last_step: int
    """End of the steps (exclusive): the step after the last step of this feed."""
    rank: int
    world: int
    """Number of ranks."""
    marks: tuple[str, ...] = ()
    """Names of the mark columns that the objective needs besides the tokens."""
    shift: int = 0
    """Number added to each sample's number in the run, because steps before `first_step` had another batch size."""

    @classmethod
    def of(cls, folder: str, sequence_length: int, global_batch_size: int, seed: int, first: int, last: int) -> "Feed":
        """Returns a feed of the steps [first, last) over one corpus, for a run with a single rank."""
        mixture = Mixture.of([_stream(folder).rows(sequence_length)], seed)
        return cls((folder,), mixture, sequence_length, global_batch_size, first, last, rank=0, world=1)

    def step(self, step: int) -> dict[str, np.ndarray]:
        """Reads the rank's share of one step's global batch.

        Returns:
            Tokens, starts and marks [rows, sequence_length]; lengths, epochs and row numbers over all sources [rows].
        """
        places = self.mixture.locate(samples(step, self.rank, self.world, self.global_batch_size) + self.shift)
        batch: dict[str, np.ndarray] = {}
        for source in np.unique(places.sources):
            here = places.sources == source
            rows = places.rows[here].tolist()
            for name, values in _stream(self.folders[source]).take(rows, self.sequence_length, self.marks).items():
                column = batch.setdefault(name, np.empty((len(here), *values.shape[1:]), values.dtype))
                column[here] = values
        return {**batch, "epochs": places.epochs, "rows": self.mixture.numbers(places)}

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches, read in this process (for a machine without Ray)."""
        for step in range(self.first_step, self.last_step):
            yield self.step(step)


@lru_cache(maxsize=64)
def _stream(folder: str) -> TokenStream:
    return TokenStream.open(Path(folder), SHARD_GLOB)


@dataclass(frozen=True)
class Fetch:
    """The Ray Data task that reads the rows of a segment of steps."""

    feed: Feed

    def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows of each step. Ray Data pauses the task while training has not taken the earlier rows."""
        for step in range(int(batch["first"][0]), int(batch["stop"][0])):
            yield self.feed.step(step)


@contextmanager
def streamed(feed: Feed) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """Yields an iterator over the feed's batches, which Ray Data tasks on the cluster read ahead of training."""
    if feed.first_step >= feed.last_step:
        yield iter(())
        return
    with data_settings(target_max_block_size=BLOCK_BYTES):
        # `from_items` is used because `range` needs a CPU, and the training workers may hold all CPUs. One task at a
        # time without a CPU is fast enough. Without the limit of one task, Ray starts dozens of processes.
        segments = _segments(feed)
        dataset = ray.data.from_items(segments, override_num_blocks=len(segments)).map_batches(
            Fetch(feed),
            batch_size=1,
            batch_format="numpy",
            num_cpus=0,
            compute=ray.data.TaskPoolStrategy(size=1),
            **pinned_here(Path(feed.folders[0])),
        )
        share = feed.global_batch_size // feed.world
        batches = iter(dataset.iter_batches(batch_size=share, batch_format="numpy", prefetch_batches=PREFETCHED_STEPS))
        yield itertools.chain([next(batches)], batches)  # waits for the first batch here, not in the first step


def _segments(feed: Feed) -> list[dict[str, int]]:
    """Cuts the run into at most SEGMENTS segments. If a node is lost, its segments are read again."""
    length = -(-(feed.last_step - feed.first_step) // SEGMENTS)
    firsts = range(feed.first_step, feed.last_step, length)
    return [{"first": first, "stop": min(first + length, feed.last_step)} for first in firsts]
