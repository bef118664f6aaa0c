"""Stores tokenized documents in Arrow files (token shards), and reads them as one long stream that is cut into rows.

In memory, a shard consists of a flat array of token ids and an array of document offsets. So all shards of a corpus, in
order, are one token stream, and training row i is the i-th piece of `sequence_length` tokens of this stream. Only the
last row is padded, no token is lost, rows can be read in any order in constant time, and the same shards can be read
with any sequence length. Marks, such as the starts of words, are stored as further columns of one bit per token.

A corpus of unknown length is also read as a stream of tokens. It is cut into shuffled batches that depend only on the
stream and a seed.

The stream is cut into windows of some million tokens, and each window into rows, which are permuted by (seed, window).
The permuted rows, window after window, are cut into batches. So a batch can be computed by reading the stream from the
beginning of the batch's window. Only the number of tokens before the window must be known.
"""

import bisect
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from adapt.corpus.sample_order import permute
from adapt.model.tokenize.piece_tokenizer import Ragged
from adapt.runner.files import file_aside
from adapt.runner.record import load_record
from adapt.support.errors import DataError
from adapt.support.schema import BYTES, KEYS, SHARD_GLOB, STARTS, TOKENS, TOKENS_IN

Documents = Sequence[Sequence[int]] | Sequence[np.ndarray]


def write_batch(path: Path, batch: pa.RecordBatch) -> None:
    """Writes an Arrow file with a single batch: to a temporary file, which is then renamed.

    So a task that dies leaves no partial file.
    """
    with file_aside(path) as aside, pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def read_batch(path: Path) -> pa.RecordBatch:
    """Maps the batch of a file into memory.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
    """
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).get_batch(0)


def write_shard(
    path: Path,
    documents: Documents,
    vocabulary_size: int,
    marks: Mapping[str, Documents] | None = None,
    keys: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> None:
    """Writes tokenized documents to a temporary file and renames it to the shard's path.

    Args:
        path: path of the shard.
        documents: token ids of each document.
        vocabulary_size: size of the vocabulary, which determines the integer type of the ids.
        marks: mark columns, keyed by name, with one boolean per token of each document.
        keys: key of each document (see `adapt.corpus.heldout`).
        sizes: length of each document's text [bytes].
    """
    columns = {TOKENS: documents, **(marks or {})}
    bounds = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    flat = {name: np.concatenate([np.zeros(0, bool), *values]) for name, values in columns.items()}
    write_flat_shard(path, Ragged(bounds, flat), vocabulary_size, keys, sizes)


def write_flat_shard(
    path: Path,
    documents: Ragged,
    vocabulary_size: int,
    keys: Sequence[int] | np.ndarray | None = None,
    sizes: Sequence[int] | np.ndarray | None = None,
) -> None:
    """Writes a shard of documents whose tokens and marks are already flat arrays; see `write_shard`."""
    schema = token_schema(vocabulary_size, tuple(name for name in documents.columns if name != TOKENS))
    offsets = pa.array(documents.bounds, pa.int32())
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(documents.columns[field.name]).cast(field.type.value_type))
        for field in schema
    ]
    for name, values in ((KEYS, keys), (BYTES, sizes)):
        if values is not None:
            schema, columns = schema.append(pa.field(name, pa.uint64())), [*columns, pa.array(values, pa.uint64())]
    write_batch(path, pa.record_batch(columns, schema=schema))


def token_schema(vocabulary_size: int, marks: tuple[str, ...] = ()) -> pa.Schema:
    """Returns the schema of a token shard: ids are 16 or 32 bit unsigned integers, and marks have one bit per token."""
    smallest = pa.uint16() if vocabulary_size <= 2**16 else pa.uint32()
    return pa.schema([(TOKENS, pa.list_(smallest)), *((mark, pa.list_(pa.bool_())) for mark in marks)])


MOST_MAPPED = 4096
"""Maximum number of shards that a `TokenStream` keeps memory-mapped. Linux allows a process 65,530 maps by default, and
a corpus of many small files has at least one shard per file."""


def shard_error(path: Path, error: Exception) -> DataError:
    """Returns the error for a shard that cannot be read. Its fix depends on whether memory or maps ran out."""
    is_full = getattr(error, "errno", None) == errno.ENOMEM or os.strerror(errno.ENOMEM) in str(error)
    again = f"delete {path.parent} to prepare the corpus again"
    more = "free memory, or allow more memory-mapped files: sysctl -w vm.max_map_count=262144"
    return DataError(f"{path} cannot be read: {error}", more if is_full else again)


@dataclass(frozen=True)
class TokenStream:
    """The documents of some shards as one stream of tokens. At most `MOST_MAPPED` shards are memory-mapped at once."""

    shards: tuple[Path, ...]

    @classmethod
    def open(cls, folder: Path, pattern: str) -> "TokenStream":
        """Opens the shards of a prepared corpus and checks their number of tokens.

        The check detects missing shards, because a missing shard would shift all later rows.

        Raises:
            DataError: a shard cannot be read, or the total number of tokens of the shards differs from the number in
                the stage's record.
        """
        stream, record = cls(tuple(sorted(folder.glob(pattern)))), load_record(folder)
        written = record.metrics.get(TOKENS_IN[pattern]) if record else None
        if written not in (None, stream.tokens):
            raise DataError(
                f"the {len(stream.shards)} files {folder / pattern} hold {stream.tokens} tokens, but {written} were"
                " written: files are missing, or files of another run were added",
                f"restore the files, or delete {folder} to prepare the corpus again",
            )
        return stream

    def __getstate__(self) -> dict[str, tuple[Path, ...]]:
        """Returns the state for other processes, which open the shards themselves."""
        return {"shards": self.shards}

    @cached_property
    def _open(self) -> Callable[[Path], "_Shard"]:
        """Function that opens a shard, and keeps the last `MOST_MAPPED` shards open."""
        return lru_cache(MOST_MAPPED)(_Shard.open)

    @cached_property
    def _ends(self) -> list[int]:
        """Position in the stream at which each shard ends [tokens]."""
        return [tokens for tokens, _ in self._both_ends]

    @cached_property
    def _document_ends(self) -> list[int]:
        """Number of documents up to the end of each shard."""
        return [documents for _, documents in self._both_ends]

    @cached_property
    def _both_ends(self) -> list[tuple[int, int]]:
        """Numbers of tokens and of documents up to the end of each shard."""
        tokens, documents, ends = 0, 0, []
        for shard in map(self._open, self.shards):
            tokens, documents = tokens + int(shard.offsets[-1]), documents + len(shard.offsets) - 1
            ends.append((tokens, documents))
        return ends

    @property
    def tokens(self) -> int:
        """Length of the stream [tokens]."""
        return self._ends[-1] if self._ends else 0

    @property
    def documents(self) -> int:
        """Number of documents in the stream."""
        return self._document_ends[-1] if self._document_ends else 0

    def slice(self, start: int, stop: int, column: str = TOKENS) -> np.ndarray:
        """Reads positions [start, stop) of the stream from a column: tokens, starts of documents, or marks."""
        return np.concatenate([shard.slice(begin, end, column) for shard, begin, end in self._pieces(start, stop)])

    def _pieces(self, start: int, stop: int) -> Iterator[tuple["_Shard", int, int]]:
        """Yields the shards that contain positions [start, stop) of the stream, and the range to read in each shard."""
        shard = bisect.bisect_right(self._ends, start)
        while start < stop:
            begin, end = self._ends[shard - 1] if shard else 0, min(stop, self._ends[shard])
            if start < end:
                yield self._open(self.shards[shard]), start - begin, end - begin
            start = end
            shard += 1

    def rows(self, sequence_length: int) -> int:
        """Returns the number of rows: the length of the stream divided by the sequence length, rounded up."""
        return -(-self.tokens // sequence_length)

    def take(self, rows: Iterable[int], sequence_length: int, marks: Iterable[str] = ()) -> dict[str, np.ndarray]:
        """Reads training rows by number.

        Returns:
            `tokens` [rows, sequence_length], padded with 0 in the last row of the stream; `lengths` [rows]; `starts`,
            bool [rows, sequence_length], True where a document starts and at the first position of each row; and the
            requested marks, bool [rows, sequence_length]. Marks of padding are False.
        """
        length = sequence_length
        ranges = [(row * length, min((row + 1) * length, self.tokens)) for row in rows]
        columns = {name: self._filled(ranges, length, name) for name in (TOKENS, STARTS, *marks)}
        columns[STARTS][:, 0] = True
        return {**columns, "lengths": np.array([stop - start for start, stop in ranges], np.int32)}

    def _filled(self, ranges: Sequence[tuple[int, int]], length: int, column: str) -> np.ndarray:
        pieces = [self.slice(start, stop, column) for start, stop in ranges]
        filled = np.zeros((len(pieces), length), pieces[0].dtype)
        for row, piece in zip(filled, pieces, strict=True):
            row[: len(piece)] = piece
        return filled

    def document(self, number: int, column: str = TOKENS) -> np.ndarray:
        """Returns a copy of the tokens or marks of one document, which does not keep the shard mapped."""
        shard, place = self._place(number)
        return shard.slice(int(shard.offsets[place]), int(shard.offsets[place + 1]), column).copy()

    def documents_in(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the numbers of the first and the last document with tokens at positions [start, stop)."""
        return self._document_at(start), self._document_at(min(stop, self.tokens) - 1)

    def _document_at(self, position: int) -> int:
        place = bisect.bisect_right(self._ends, position)
        within = position - (self._ends[place - 1] if place else 0)
        number = int(np.searchsorted(self._open(self.shards[place]).offsets, within, side="right")) - 1
        return number + (self._document_ends[place - 1] if place else 0)

    def text_size(self, number: int) -> int | None:
        """Returns the length of a document's text [bytes]; None if its shard has no column of lengths."""
        shard, place = self._place(number)
        return shard.batch.column(BYTES)[place].as_py() if BYTES in shard.batch.schema.names else None

    def _place(self, number: int) -> tuple["_Shard", int]:
        """Returns the shard that contains a document, and the document's number in that shard."""
        place = bisect.bisect_right(self._document_ends, number)
        if place == len(self.shards):
            raise IndexError(number)
        return self._open(self.shards[place]), number - (self._document_ends[place - 1] if place else 0)


def text_of(corpora: Sequence[str | Path]) -> TokenStream:
    """Opens the prepared training texts of several folders as one stream of tokens."""
    streams = (TokenStream.open(Path(folder), SHARD_GLOB) for folder in corpora)
    return TokenStream(tuple(shard for stream in streams for shard in stream.shards))


@dataclass(frozen=True)
class _Shard:
    """A memory-mapped shard."""

    batch: pa.RecordBatch
    offsets: np.ndarray
    """Offset in `tokens` at which each document starts, followed by the end of the last document."""
    tokens: np.ndarray

    @classmethod
    def open(cls, path: Path) -> "_Shard":
        try:
            batch = read_batch(path)
        except (OSError, pa.ArrowException) as error:
            raise shard_error(path, error) from error
        column = batch.column(TOKENS)
        return cls(batch, column.offsets.to_numpy(), column.values.to_numpy())

    def slice(self, start: int, stop: int, column: str) -> np.ndarray:
        if column == TOKENS:
            return self.tokens[start:stop]
        if column == STARTS:
            starts = np.zeros(stop - start, bool)
            first, last = np.searchsorted(self.offsets, [start, stop])
            starts[self.offsets[first:last] - start] = True
            return starts
        bits: np.ndarray = self.batch.column(column).values.slice(start, stop - start).to_numpy(zero_copy_only=False)
        return bits


WINDOW_TOKENS = 2**22
"""Size of a window of the stream [tokens]. This is about 16 MB of English text. A window is held in memory, and a
resumed run rereads the window in which it stopped."""

Columns = dict[str, np.ndarray]
"""Arrays of equal length, keyed by the name of the column."""


@dataclass(frozen=True)
class Cut:
    """Settings for cutting a stream of tokens into batches."""

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
        """Yields the global batches, beginning with the batch of `step`.

        If the last batch is not full, it is filled with repeated rows of the last window, so that no text is lost.
        Repeated rows have epoch 1 or more.

        Args:
            pieces: the stream from position `start_of(step)` on, in pieces of any length. A piece has columns of
                tokens, starts and marks [tokens].
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
        """Returns the shuffled rows of a window. The last row of the stream is padded if it is short."""
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
    """Cuts a stream into pieces of `wanted` entries. The last piece may be shorter."""
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
    """Yields the pieces of a stream without the first `count` entries of the stream."""
    for piece in pieces:
        yield _slice(piece, count, None)
        count = max(0, count - columns_length(piece))


def columns_length(columns: Columns) -> int:
    """Returns the number of entries of each column."""
    return len(columns[TOKENS])


def take_places(columns: Columns, places: np.ndarray | slice) -> Columns:
    """Returns the entries of each column at the given positions."""
    return {name: values[places] for name, values in columns.items()}


def joined_columns(pieces: list[Columns]) -> Columns:
    """Concatenates pieces, column by column."""
    return pieces[0] if len(pieces) == 1 else {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}


def _slice(columns: Columns, start: int, stop: int | None) -> Columns:
    return take_places(columns, slice(start, stop))
