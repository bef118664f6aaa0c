"""Reads the training batches of a rank from token shards. Ray Data and a single process give the same order."""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray.data

from adapt.corpus.sample_order import Mixture, samples
from adapt.corpus.token_shards import TokenStream
from adapt.ray import node_files, runtime
from adapt.support.schema import SHARD_GLOB

BLOCK_BYTES = 2_000_000
"""Maximum size of the blocks that a reading task passes on [bytes]. A block has at least one step."""
STEPS_AT_ONCE = 64
"""Maximum number of steps in a block. Reading 64 steps of 8 rows at once takes a sixth of the time per step."""
PART_BYTES = 32 * 2**20
"""Maximum size of a part of a run [bytes]. While training uses a part, the next part is read."""
_PER_ROW = ("lengths", "epochs", "rows")
"""Columns with one number per row. All other columns have a number per token."""


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
    """Step after the last step of this feed (exclusive end)."""
    rank: int
    world: int
    """Number of ranks."""
    marks: tuple[str, ...] = ()
    """Names of the mark columns that the objective needs besides the tokens."""
    shift: int = 0
    """Offset that is added to the sample numbers of this feed, because earlier steps had another batch size."""

    @classmethod
    def of(cls, folder: str, sequence_length: int, global_batch_size: int, seed: int, first: int, last: int) -> "Feed":
        """Returns a feed of the steps [first, last) over one corpus, for a run with a single rank."""
        mixture = Mixture.of([open_shards(folder).rows(sequence_length)], seed)
        return cls((folder,), mixture, sequence_length, global_batch_size, first, last, rank=0, world=1)

    @property
    def step_bytes(self) -> int:
        """Approximate size of the rank's share of a global batch, with two bytes per token id [bytes]."""
        return self.global_batch_size // self.world * self.sequence_length * (3 + len(self.marks))

    @property
    def steps_at_once(self) -> int:
        """Number of steps that are read at once and form a block."""
        return max(1, min(STEPS_AT_ONCE, BLOCK_BYTES // self.step_bytes))

    def step(self, step: int) -> dict[str, np.ndarray]:
        """Reads the rank's share of one step's global batch.

        Returns:
            Tokens, starts and marks [rows, sequence_length]; lengths, epochs and row numbers over all sources [rows].
        """
        return self.steps(step, step + 1)

    def steps(self, first: int, stop: int) -> dict[str, np.ndarray]:
        """Reads the rank's shares of steps [first, stop) like `step`, in step order. The range must not be empty."""
        numbers = [samples(step, self.rank, self.world, self.global_batch_size) for step in range(first, stop)]
        places = self.mixture.locate(np.concatenate(numbers) + self.shift)
        batch: dict[str, np.ndarray] = {}
        for source in np.unique(places.sources):
            here = places.sources == source
            rows = places.rows[here].tolist()
            for name, values in open_shards(self.folders[source]).take(rows, self.sequence_length, self.marks).items():
                column = batch.setdefault(name, np.empty((len(here), *values.shape[1:]), values.dtype))
                column[here] = values
        return {**batch, "epochs": places.epochs, "rows": self.mixture.numbers(places)}

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches, read in this process (for a machine without Ray)."""
        for step in range(self.first_step, self.last_step):
            yield self.step(step)


@lru_cache(maxsize=64)
def open_shards(folder: str) -> TokenStream:
    """Returns the token stream of a corpus. Streams are cached per process."""
    return TokenStream.open(Path(folder), SHARD_GLOB)


@dataclass(frozen=True)
class Fetch:
    """The Ray Data task that reads the rows of a part of a run."""

    feed: Feed

    def __call__(self, part: dict[str, np.ndarray]) -> Iterator[pa.Table]:
        """Yields tables with one row, in which each column lists the values of `steps_at_once` steps."""
        first, stop, count = int(part["first"][0]), int(part["stop"][0]), self.feed.steps_at_once
        for step in range(first, stop, count):
            columns = self.feed.steps(step, min(step + count, stop))
            flat = {name: np.ravel(values) for name, values in columns.items()}
            numbers = {name: v.view(np.uint8) if v.dtype == np.bool_ else v for name, v in flat.items()}
            yield pa.table({name: pa.LargeListArray.from_arrays([0, len(v)], v) for name, v in numbers.items()})


@contextmanager
def streamed(feed: Feed) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """Yields an iterator over the feed's batches, which Ray Data tasks read ahead of training.

    Each part of the run is a separate dataset, which Ray Data reads without pauses. A single dataset would either be
    read far ahead of training, or would have a limit. At the limit, the executor of Ray 2.60 does not sleep. It takes
    time from the process that trains.

    This process reads the first part itself, because a task needs seconds to start.
    """
    if feed.first_step >= feed.last_step:
        yield iter(())
        return
    with runtime.data_settings(target_max_block_size=1), ThreadPoolExecutor(1) as thread:  # each table becomes a block
        batches = _batches(feed, thread)
        yield itertools.chain([next(batches)], batches)  # reads the first batch here, not in the first step


def _batches(feed: Feed, thread: ThreadPoolExecutor) -> Iterator[dict[str, np.ndarray]]:
    (first, stop), *later = parts_of_feed(feed)
    parts = iter(later)

    def read_next() -> "Future[deque[Any]] | None":
        part = next(parts, None)
        return thread.submit(_blocks, feed, *part) if part else None

    coming = read_next()
    yield from map(feed.step, range(first, stop))
    while coming:
        blocks, coming = coming.result(), read_next()
        while blocks:
            yield from _steps(feed, _columns(ray.get(blocks.popleft())))


def parts_of_feed(feed: Feed) -> Iterator[tuple[int, int]]:
    """Cuts the steps of a feed into parts, and yields the first step and the end (exclusive) of each part.

    The first part has at most `STEPS_AT_ONCE` steps. Each further part is twice as long, up to `PART_BYTES`.
    """
    first, length = feed.first_step, STEPS_AT_ONCE
    while first < feed.last_step:
        stop = min(first + length, feed.last_step)
        yield first, stop
        first, length = stop, max(1, min(2 * length, PART_BYTES // feed.step_bytes))


def _blocks(feed: Feed, first: int, stop: int) -> "deque[Any]":
    """Reads a part of a run into the object store, and returns references to its blocks in the order of the steps."""
    # A task without a CPU, because the training workers may hold all CPUs.
    dataset = ray.data.from_items([{"first": first, "stop": stop}], override_num_blocks=1).map_batches(
        Fetch(feed),
        batch_size=1,
        batch_format="numpy",
        num_cpus=0,
        compute=ray.data.TaskPoolStrategy(size=1),
        **node_files.pinned_here(Path(feed.folders[0])),
    )
    return deque(dataset.to_arrow_refs())


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    """Returns the flat columns of a table that `Fetch` has made."""
    flat = {name: table.column(name)[0].values.to_numpy() for name in table.column_names}
    return {name: values.view(np.bool_) if values.dtype == np.uint8 else values for name, values in flat.items()}


def _steps(feed: Feed, columns: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the batch of each step in a block, as `Feed.step` returns it."""
    rows = (-1, feed.global_batch_size // feed.world)
    steps = {
        name: values.reshape(*rows, *(() if name in _PER_ROW else (feed.sequence_length,)))
        for name, values in columns.items()
    }
    for step in range(len(steps["rows"])):
        yield {name: values[step].copy() for name, values in steps.items()}  # a copy, which frees the block
