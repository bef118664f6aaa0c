"""Candidate pairs of duplicates: documents that share a bucket, found partition by partition with bounded memory.

Each chunk of documents becomes two Arrow files: what is known of each document, and (bucket, document) pairs sorted by
bucket. A partition is a range of buckets, so it is a slice of every sorted file, found by binary search and mapped
into memory. Nothing is moved between machines but what a partition reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from adapt.corpus.dedup.minhash import estimated_jaccard
from adapt.runner.files import file_aside

Key = Sequence[int] | np.ndarray
"""Source, item and chunk."""
REACH = 16
"""A document is compared with so many that follow it in its bucket, and with the bucket's first."""
_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class ChunkParts:
    """The chunks of all sources in stream order. A document's number is its place in them all."""

    folder: Path
    keys: np.ndarray
    """Source, item and chunk of each: int64 [parts, 3], sorted."""
    starts: np.ndarray
    """Number of each one's first document, and at the end the number of documents: int64 [parts + 1]."""

    def bucket_slices(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """All (bucket, document) with low <= bucket <= high: uint64 and int64 [entries]."""
        entries = []
        for key, start in zip(self.keys, self.starts[:-1], strict=True):
            table = _mapped(self.folder / bucket_file(key))
            buckets = table.column("bucket").to_numpy()
            first = int(np.searchsorted(buckets, np.uint64(low), "left"))
            last = int(np.searchsorted(buckets, np.uint64(high), "right"))
            rows = table.column("row").slice(first, last - first).to_numpy()
            entries.append((buckets[first:last].copy(), rows.astype(np.int64) + start))
        buckets = np.concatenate([np.zeros(0, np.uint64), *(bucket for bucket, _ in entries)])
        return buckets, np.concatenate([np.zeros(0, np.int64), *(documents for _, documents in entries)])

    def values(self, documents: np.ndarray, column: str) -> np.ndarray:
        """What is known of some documents.

        Args:
            documents: numbers in order, int64 [documents].
            column: `digest` (uint64 [documents, 2]), `signature` (uint32 [documents, permutations]) or `heldout`
                (uint8 [documents, 1]).
        """
        rows = []
        of_part = np.searchsorted(self.starts, documents, "right") - 1
        for part in np.unique(of_part):
            values = _opened(self.folder / document_file(self.keys[part])).column(column)
            array = values.flatten().to_numpy().reshape(len(values), -1)
            rows.append(array[documents[of_part == part] - self.starts[part]])
        return np.concatenate(rows)

    def sources(self, documents: np.ndarray) -> np.ndarray:
        """The source of each document, int64."""
        sources: np.ndarray = self.keys[np.searchsorted(self.starts, documents, "right") - 1, 0]
        return sources

    def excerpt(self, document: int) -> str:
        """The beginning of a document."""
        part = int(np.searchsorted(self.starts, document, "right")) - 1
        excerpts = _mapped(self.folder / document_file(self.keys[part])).column("excerpt")
        return str(excerpts[document - int(self.starts[part])].as_py())


def document_file(key: Key) -> str:
    """Name of the file with what is known of a chunk's documents."""
    return "documents-{:03d}-{:06d}-{:06d}.arrow".format(*key)


def bucket_file(key: Key) -> str:
    """Name of the file with a chunk's sorted buckets."""
    return "buckets-{:03d}-{:06d}-{:06d}.arrow".format(*key)


def write_chunk(
    folder: Path,
    key: Key,
    digests: np.ndarray,
    signed: np.ndarray,
    buckets: np.ndarray,
    excerpts: list[str],
    heldout: np.ndarray,
) -> None:
    """Writes both files of a chunk.

    Args:
        folder: where.
        key: source, item and chunk.
        digests: uint64 [documents, 2].
        signed: signatures, uint32 [documents, permutations], or without columns.
        buckets: uint64 [documents, buckets of a document].
        excerpts: beginnings of the documents.
        heldout: which of them are held out, uint8 [documents].
    """
    known = {"digest": _lists(digests), "excerpt": pa.array(excerpts, pa.string()), "heldout": _lists(heldout[:, None])}
    if signed.shape[1]:
        known["signature"] = _lists(signed)
    _write(folder / document_file(key), pa.table(known))
    flat = buckets.ravel()
    order = np.argsort(flat, kind="stable")
    rows = (order // max(buckets.shape[1], 1)).astype(np.uint32)
    _write(folder / bucket_file(key), pa.table({"bucket": flat[order], "row": rows}))


def candidates(buckets: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Pairs of documents that share a bucket, the smaller number first: int64 [pairs, 2], each once.

    All pairs of a bucket of at most REACH + 1 documents. In a larger one, pairs of documents at most REACH apart, and
    of each with the first: the number of pairs grows with the documents and not with their square.

    Args:
        buckets: uint64 [entries].
        documents: int64 [entries].
    """
    order = np.lexsort((documents, buckets))
    buckets, documents = buckets[order], documents[order]
    pieces = [np.zeros((0, 2), np.int64)]
    for apart in range(1, REACH + 1):
        same = buckets[apart:] == buckets[:-apart]
        if not same.any():
            break
        pieces.append(np.stack([documents[:-apart][same], documents[apart:][same]], axis=1))
    starts = np.flatnonzero(np.concatenate([[True], buckets[1:] != buckets[:-1]])) if len(buckets) else buckets[:0]
    first = np.repeat(starts, np.diff(np.append(starts, len(buckets))).astype(np.int64)).astype(np.int64)
    far = np.arange(len(buckets)) - first > REACH
    pieces.append(np.stack([documents[first[far]], documents[far]], axis=1))
    pairs = np.concatenate(pieces)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def duplicates(parts: ChunkParts, pairs: np.ndarray, threshold: float | None) -> Iterator[np.ndarray]:
    """The pairs that are duplicates, some at a time, int64 [pairs, 2].

    Args:
        parts: all documents.
        pairs: candidates.
        threshold: least estimated Jaccard similarity; None wants equal normalised texts.
    """
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        some = pairs[start : start + _PAIRS_AT_ONCE]
        documents, places = np.unique(some, return_inverse=True)
        first, second = places.reshape(-1, 2).T
        digests = parts.values(documents, "digest")
        same = (digests[first] == digests[second]).all(axis=1)
        if threshold is not None:
            signed = parts.values(documents, "signature")
            same |= estimated_jaccard(signed[first], signed[second]) >= threshold
        yield some[same]


def _lists(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _write(path: Path, table: pa.Table) -> None:
    """Written aside, so that a task that died and runs again leaves no half of a file."""
    with file_aside(path) as aside, pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0] if len(table) else _empty(table.schema))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _mapped(path: Path) -> pa.RecordBatch:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).get_batch(0)


_opened = lru_cache(maxsize=64)(_mapped)
