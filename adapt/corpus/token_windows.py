"""Cuts a stream of tokens of unknown length into shuffled batches, which depend only on the stream and a seed.

The stream is cut into windows of some million tokens, and each window into rows, which are permuted by (seed, window).
The permuted rows, window after window, are cut into batches. So a batch can be computed by reading from the beginning
of its window, and only the number of tokens before that window must be known.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from adapt.corpus.sample_order import permute
from adapt.support.schema import STARTS, TOKENS

WINDOW_TOKENS = 2**22
"""Size of a window [tokens], which is about 16 MB of English text. A window is held in memory, and a resumed run reads
its first window again."""

Columns = dict[str, np.ndarray]
"""Arrays of equal length, keyed by the name of the column."""


@dataclass(frozen=True)
class Cut:
    """Settings by which a stream is cut into batches."""

    sequence_length: int
    global_batch_size: int
    seed: int
    window_tokens: int = WINDOW_TOKENS

    @property
    def window_rows(self) -> int:
        """Number of rows of a window. The last window may have fewer rows."""
        return max(1, self.window_tokens // self.sequence_length)

    def window_of(self, step: int) -> int:
        """Returns the index of the window in which a step's batch begins."""
        return step * self.global_batch_size // self.window_rows

    def start_of(self, step: int) -> int:
        """Returns the offset in the stream at which the window of a step's batch begins [tokens]."""
        return self.window_of(step) * self.window_rows * self.sequence_length

    def batches(self, pieces: Iterable[Columns], step: int) -> Iterator[Columns]:
        """Yields the global batches from a step on.

        The last batch is filled up with repeated rows of the last window, which have epoch 1 or more, so that no text
        is lost.

        Args:
            pieces: the stream from `start_of(step)` on, in pieces with columns of tokens, starts and marks [tokens].
            step: step of the first batch.

        Yields:
            Tokens, starts and marks [global_batch_size, sequence_length]; lengths, epochs and row numbers
                [global_batch_size].
        """
        first = self.window_of(step)
        skipped = step * self.global_batch_size - first * self.window_rows
        last: Columns = {}

        def windows() -> Iterator[Columns]:
            nonlocal last
            flats = regroup(pieces, self.window_rows * self.sequence_length)
            for number, flat in enumerate(flats, start=first):
                last = self._window(flat, number)
                yield last

        for batch in regroup(dropped(windows(), skipped), self.global_batch_size):
            yield self._filled(batch, last) if columns_length(batch) < self.global_batch_size else batch

    def _window(self, flat: Columns, number: int) -> Columns:
        """Returns the rows of a window, shuffled. The last row of the stream may be short."""
        length, tokens = self.sequence_length, columns_length(flat)
        rows = -(-tokens // length)
        columns: Columns = {
            name: np.resize(values, rows * length).reshape(rows, length) for name, values in flat.items()
        }
        for values in columns.values():
            values.reshape(-1)[tokens:] = 0
        columns[STARTS][:, 0] = True
        columns["lengths"] = np.minimum(length, tokens - np.arange(rows) * length).astype(np.int32)
        columns["epochs"] = np.zeros(rows, np.int64)
        columns["rows"] = np.arange(rows) + number * self.window_rows
        return take_places(columns, permute(np.arange(rows), rows, self.seed, number))

    def _filled(self, batch: Columns, window: Columns) -> Columns:
        missing = np.arange(self.global_batch_size - columns_length(batch))
        again = {
            **take_places(window, missing % columns_length(window)),
            "epochs": 1 + missing // columns_length(window),
        }
        return joined_columns([batch, again])


def regroup(pieces: Iterable[Columns], wanted: int) -> Iterator[Columns]:
    """Yields the stream in pieces of `wanted` entries. The last piece may be shorter."""
    held: list[Columns] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += columns_length(piece)
        if count < wanted:
            continue
        whole = joined_columns(held)
        stop = count - count % wanted
        yield from (_slice(whole, start, start + wanted) for start in range(0, stop, wanted))
        held, count = [_slice(whole, stop, None)], count - stop
    if count:
        yield joined_columns(held)


def dropped(pieces: Iterable[Columns], count: int) -> Iterator[Columns]:
    """Yields the stream without its first `count` entries."""
    for piece in pieces:
        yield _slice(piece, count, None)
        count = max(0, count - columns_length(piece))


def columns_length(columns: Columns) -> int:
    """Returns the number of entries of each column."""
    return len(columns[TOKENS])


def take_places(columns: Columns, places: np.ndarray | slice) -> Columns:
    """Returns the entries of each column at some positions."""
    return {name: values[places] for name, values in columns.items()}


def joined_columns(pieces: list[Columns]) -> Columns:
    """Concatenates pieces, column by column."""
    return pieces[0] if len(pieces) == 1 else {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}


def _slice(columns: Columns, start: int, stop: int | None) -> Columns:
    return take_places(columns, slice(start, stop))
