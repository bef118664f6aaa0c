"""Token shards: Arrow files of tokenized documents, read back as one long stream cut into rows.

A shard's list column is, in memory, one flat array of token ids and one of document offsets. All shards of a corpus
together, in order, are therefore one token stream; training row i is its i-th piece of `sequence_length` tokens. So
nothing is padded but the last row, no token is lost, rows can be read in any order in constant time, and the same
shards serve every sequence length.
"""

import bisect
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from adapt.chain.files import storage_errors
from adapt.errors import DataError
from adapt.schema import TOKENS, token_schema


def write_shard(path: Path, documents: Sequence[Sequence[int]], vocabulary_size: int) -> None:
    """Writes tokenized documents aside and renames the file into place."""
    schema = token_schema(vocabulary_size)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors(path):
        with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([pa.array(documents, schema.field(TOKENS).type)], schema=schema))
        os.replace(aside, path)


@dataclass(frozen=True)
class TokenStream:
    """The documents of some shards as one stream of tokens, memory-mapped."""

    shards: tuple[Path, ...]

    @classmethod
    def open(cls, folder: Path, pattern: str) -> "TokenStream":
        """The shards of a prepared corpus (see `adapt.schema` for the patterns)."""
        return cls(tuple(sorted(folder.glob(pattern))))

    @cached_property
    def _arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [_map(shard) for shard in self.shards]

    @cached_property
    def _ends(self) -> list[int]:
        """Where each shard ends in the stream [tokens]."""
        return list(itertools.accumulate(len(tokens) for tokens, _ in self._arrays))

    @property
    def tokens(self) -> int:
        """Length of the stream."""
        return self._ends[-1] if self._ends else 0

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(len(offsets) - 1 for _, offsets in self._arrays)

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of the stream."""
        pieces = []
        shard = bisect.bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[shard - 1] if shard else 0
            piece = self._arrays[shard][0][start - begin : stop - begin]
            pieces.append(piece)
            start += len(piece)
            shard += 1
        return np.concatenate(pieces)

    def rows(self, sequence_length: int) -> int:
        """Number of rows: the stream's length over the sequence length, rounded up."""
        return -(-self.tokens // sequence_length)

    def take(self, rows: Iterable[int], sequence_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Training rows by number.

        Returns:
            Token ids [rows, sequence_length] (the stream's last row is filled up with 0) and lengths [rows].
        """
        pieces = [self.slice(row * sequence_length, min((row + 1) * sequence_length, self.tokens)) for row in rows]
        tokens = np.zeros((len(pieces), sequence_length), pieces[0].dtype)
        for filled, piece in zip(tokens, pieces, strict=True):
            filled[: len(piece)] = piece
        return tokens, np.array([len(piece) for piece in pieces], np.int32)

    def document(self, number: int) -> np.ndarray:
        """Tokens of one document."""
        for tokens, offsets in self._arrays:
            if number < len(offsets) - 1:
                return tokens[offsets[number] : offsets[number + 1]]
            number -= len(offsets) - 1
        raise IndexError(number)


def _map(shard: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with pa.memory_map(str(shard)) as source:
            column = pa.ipc.open_file(source).get_batch(0).column(TOKENS)  # shards have one batch, which is not copied
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{shard} cannot be read: {error}", f"delete {shard.parent} to prepare the corpus again"
        ) from error
    offsets = column.offsets.to_numpy()
    return column.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]
