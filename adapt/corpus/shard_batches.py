"""Training batches as they reach a rank: read from the shards by Ray Data, in an order that never depends on how."""

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
from adapt.ray.runtime import data_settings
from adapt.support.schema import SHARD_GLOB

BLOCK_BYTES = 2_000_000
"""What a reading task hands over at once."""
PREFETCHED_STEPS = 8
SEGMENTS = 64
"""Pieces of a run; each is read by one task."""


@dataclass(frozen=True)
class Feed:
    """Which batches a rank is to get."""

    folders: tuple[str, ...]
    """Folders of the prepared sources."""
    mixture: Mixture
    """The mixture of their rows."""
    sequence_length: int
    global_batch_size: int
    first_step: int
    last_step: int
    """Exclusive."""
    rank: int
    world: int
    marks: tuple[str, ...] = ()
    """Columns beyond the tokens that the objective asks for."""

    @classmethod
    def of(cls, folder: str, sequence_length: int, global_batch_size: int, seed: int, first: int, last: int) -> "Feed":
        """All of the steps [first, last) on one corpus, for one rank."""
        mixture = Mixture.of([_stream(folder).rows(sequence_length)], seed)
        return cls((folder,), mixture, sequence_length, global_batch_size, first, last, rank=0, world=1)

    def step(self, step: int) -> dict[str, np.ndarray]:
        """The rank's share of one step's global batch.

        Returns:
            tokens, starts and marks [rows, sequence_length], lengths, epochs and row numbers over all sources [rows].
        """
        places = self.mixture.locate(samples(step, self.rank, self.world, self.global_batch_size))
        batch: dict[str, np.ndarray] = {}
        for source in np.unique(places.sources):
            here = places.sources == source
            rows = places.rows[here].tolist()
            for name, values in _stream(self.folders[source]).take(rows, self.sequence_length, self.marks).items():
                column = batch.setdefault(name, np.empty((len(here), *values.shape[1:]), values.dtype))
                column[here] = values
        return {**batch, "epochs": places.epochs, "rows": self.mixture.numbers(places)}

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches, read in this process (for a machine without Ray)."""
        for step in range(self.first_step, self.last_step):
            yield self.step(step)


@lru_cache(maxsize=64)
def _stream(folder: str) -> TokenStream:
    return TokenStream.open(Path(folder), SHARD_GLOB)


@dataclass(frozen=True)
class Fetch:
    """The Ray Data task: a segment of steps in, their rows out, step by step as they are asked for."""

    feed: Feed

    def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """The rows of each step. Ray Data holds the task back when training has not taken what is there."""
        for step in range(int(batch["first"][0]), int(batch["stop"][0])):
            yield self.feed.step(step)


@contextmanager
def streamed(feed: Feed) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """The feed's batches, read ahead of training by Ray Data tasks anywhere on the cluster."""
    if feed.first_step >= feed.last_step:
        yield iter(())
        return
    with data_settings(target_max_block_size=BLOCK_BYTES):
        # items and not a range: reading a range takes a CPU, which the training workers may all hold. One task at a
        # time, on no CPU, is ahead of any training; without that limit Ray starts processes by the dozen.
        segments = _segments(feed)
        dataset = ray.data.from_items(segments, override_num_blocks=len(segments)).map_batches(
            Fetch(feed), batch_size=1, batch_format="numpy", num_cpus=0, compute=ray.data.TaskPoolStrategy(size=1)
        )
        share = feed.global_batch_size // feed.world
        batches = iter(dataset.iter_batches(batch_size=share, batch_format="numpy", prefetch_batches=PREFETCHED_STEPS))
        yield itertools.chain([next(batches)], batches)  # its start belongs to the job's, not to the first step


def _segments(feed: Feed) -> list[dict[str, int]]:
    """The run in a few pieces, however long it is: what a task makes again when its node is lost."""
    length = -(-(feed.last_step - feed.first_step) // SEGMENTS)
    firsts = range(feed.first_step, feed.last_step, length)
    return [{"first": first, "stop": min(first + length, feed.last_step)} for first in firsts]
