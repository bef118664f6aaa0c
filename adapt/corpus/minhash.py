"""Finds candidate pairs of duplicates by bands of MinHash signatures, without comparing every pair of documents.

The similarity s of two documents is the Jaccard similarity of their sets of shingles (runs of words). Two signatures
agree at a position with probability s (Broder 1997). The package rensa computes signatures as in Fast Similarity
Sketching (Dahlgaard, Knudsen and Thorup 2017, arXiv 1704.04370). With b bands of r positions each, two documents share
at least one band with probability

    P(s) = 1 - (1 - s^r)^b

`bands_for` chooses the largest r with P(threshold) >= 0.99, which gives the fewest candidates. For a threshold of 0.8
and 256 permutations this is b = 32, r = 8: P is .12 at s = .5, .42 at .6, .85 at .7, .997 at .8 and 1.0 at .9. A
candidate pair counts as duplicates if its estimated similarity reaches the threshold. The estimate is the share of
positions that agree; its standard deviation is sqrt(s (1 - s) / 256), which is .025 at s = .8.

Each chunk of documents becomes two Arrow files: one has the digest and signature of each document, the other
has (bucket, document) pairs sorted by bucket. A partition is a range of buckets: a slice of every sorted file, found by
binary search and mapped into memory. Only the slices that a partition reads are moved between machines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from rensa import RMinHash

from adapt.config import CorpusConfig
from adapt.corpus.shingles import shingles
from adapt.corpus.token_shards import read_batch, write_batch
from adapt.support.splitmix import GOLDEN, mix

SEED = 42
RECALL_AT_THRESHOLD = 0.99


def signatures(texts: Sequence[str], n: int, permutations: int) -> np.ndarray:
    """Computes the MinHash signatures of normalised texts.

    Args:
        texts: texts that `adapt.corpus.shingles.normalised` has normalised.
        n: length of a shingle [words]. A text of fewer words is one shingle.
        permutations: number of positions of a signature.

    Returns:
        uint32 [texts, permutations].
    """
    sets = [shingles(text, n) for text in texts]
    ends = np.cumsum([0, *map(len, sets)]).astype(np.uint64)
    flat = np.concatenate([*sets, np.zeros(0, np.uint64)])
    rows = RMinHash.digest_matrix_from_flat_token_hashes(flat, ends, permutations, SEED).to_rows() if texts else []
    return np.array(rows, np.uint32).reshape(len(texts), permutations)


def share_probability(similarity: float, bands: int, rows: int) -> float:
    """Returns the probability that two documents with Jaccard similarity s share a band: 1 - (1 - s^r)^b."""
    return float(1 - (1 - similarity**rows) ** bands)


def bands_for(threshold: float, permutations: int) -> tuple[int, int]:
    """Chooses the number of bands, and the number of rows (positions) per band, for a similarity threshold.

    Returns:
        Number of bands and number of rows per band. The number of rows is the maximum at which two documents whose
        similarity equals the threshold share a band with a probability of at least RECALL_AT_THRESHOLD. It is 1 if no
        number of rows reaches this probability.
    """
    for rows in range(permutations, 0, -1):
        if share_probability(threshold, permutations // rows, rows) >= RECALL_AT_THRESHOLD:
            return permutations // rows, rows
    return permutations, 1


@dataclass(frozen=True)
class DuplicateRule:
    """Settings that decide which documents are duplicates."""

    near: bool
    """Whether near copies count as duplicates. If False, only documents with equal normalised texts count as
    duplicates."""
    n: ClassVar[int] = 5
    """Length of a shingle, which is a run of words [words]."""
    permutations: ClassVar[int] = 256
    """Number of positions of a MinHash signature."""
    threshold: float = 0.8
    """Minimum estimated Jaccard similarity of near copies."""

    @classmethod
    def of(cls, corpus: CorpusConfig) -> "DuplicateRule":
        """Reads the settings for finding duplicates from the configuration of a corpus."""
        return cls(corpus.deduplicate == "near", threshold=corpus.near_threshold)

    @property
    def bands(self) -> tuple[int, int]:
        """Number of bands of a signature and number of rows per band; (0, 0) if only equal texts are duplicates."""
        return bands_for(self.threshold, self.permutations) if self.near else (0, 0)


def band_hashes(signed: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Hashes each band of each signature.

    Args:
        signed: signatures, uint32 [documents, permutations].
        bands: number of bands.
        rows: number of positions per band; positions beyond bands x rows are not used.

    Returns:
        uint64 [documents, bands]. Equal values in different bands have different hashes.
    """
    places = signed[:, : bands * rows].reshape(len(signed), bands, rows).astype(np.uint64)
    hashes = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), (len(signed), bands))
    for row in range(rows):
        hashes = mix(hashes * GOLDEN + places[:, :, row])
    return hashes


def estimated_jaccard(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Estimates the Jaccard similarity of each pair by the share of positions at which its two signatures agree.

    Args:
        first: signature of the first document of each pair, uint32 [pairs, permutations].
        second: signature of the second document of each pair, uint32 [pairs, permutations].

    Returns:
        float64 [pairs].
    """
    shares: np.ndarray = (first == second).mean(axis=1)
    return shares


Key = Sequence[int] | np.ndarray
"""Source number, item number and chunk number, which identify a chunk of documents."""
REACH = 16
"""Number of subsequent documents in the same bucket with which each document is compared. Each document is also
compared with the first document of the bucket."""
_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class ChunkParts:
    """The chunks of all sources in stream order. Documents are numbered over all chunks, from 0."""

    folder: Path
    keys: np.ndarray
    """Source number, item number and chunk number of each chunk: int64 [parts, 3], sorted."""
    starts: np.ndarray
    """Number of the first document of each chunk, counted over all chunks, followed by the number of all documents:
    int64 [parts + 1]."""

    def bucket_slices(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads all (bucket, document) pairs with low <= bucket <= high: uint64 and int64 [entries]."""
        entries = []
        for key, start in zip(self.keys, self.starts[:-1], strict=True):
            table = read_batch(self.folder / bucket_file(key))
            buckets = table.column("bucket").to_numpy()
            first = int(np.searchsorted(buckets, np.uint64(low), "left"))
            last = int(np.searchsorted(buckets, np.uint64(high), "right"))
            rows = table.column("row").slice(first, last - first).to_numpy()
            entries.append((buckets[first:last].copy(), rows.astype(np.int64) + start))
        buckets = np.concatenate([np.zeros(0, np.uint64), *(bucket for bucket, _ in entries)])
        return buckets, np.concatenate([np.zeros(0, np.int64), *(documents for _, documents in entries)])

    def values(self, documents: np.ndarray, column: str) -> np.ndarray:
        """Reads the values of a column for the given documents.

        Args:
            documents: ascending numbers of documents, int64 [documents].
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
        """Returns the index of the source of each document, int64 [documents]."""
        sources: np.ndarray = self.keys[np.searchsorted(self.starts, documents, "right") - 1, 0]
        return sources


def document_file(key: Key) -> str:
    """Returns the name of the file with the digests and signatures of a chunk's documents."""
    return "documents-{:03d}-{:06d}-{:06d}.arrow".format(*key)


def bucket_file(key: Key) -> str:
    """Returns the name of the file with the sorted buckets of a chunk."""
    return "buckets-{:03d}-{:06d}-{:06d}.arrow".format(*key)


def write_chunk(
    folder: Path, key: Key, digests: np.ndarray, signed: np.ndarray, buckets: np.ndarray, heldout: np.ndarray
) -> None:
    """Writes the two files of a chunk of documents: one with the documents, and one with their sorted buckets.

    Args:
        folder: folder to write into.
        key: key of the chunk.
        digests: 128-bit digests of the documents, uint64 [documents, 2].
        signed: signatures, uint32 [documents, permutations]; [documents, 0] if only equal texts are duplicates.
        buckets: buckets of each document, uint64 [documents, buckets per document].
        heldout: 1 for each held-out document and 0 for the others, uint8 [documents].
    """
    known = {"digest": _lists(digests), "heldout": _lists(heldout[:, None])}
    if signed.shape[1]:
        known["signature"] = _lists(signed)
    write_batch(folder / document_file(key), pa.record_batch(known))
    flat = buckets.ravel()
    order = np.argsort(flat, kind="stable")
    rows = (order // max(buckets.shape[1], 1)).astype(np.uint32)
    write_batch(folder / bucket_file(key), pa.record_batch({"bucket": pa.array(flat[order]), "row": pa.array(rows)}))


def candidates(buckets: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Returns pairs of documents that share a bucket, the smaller number first: int64 [pairs, 2], without repeats.

    A bucket of at most REACH + 1 documents gives all pairs of these documents. A larger bucket gives the pairs whose
    positions in the bucket differ by at most REACH, and the pairs of each document with the first document of the
    bucket. So the number of pairs grows linearly with the number of documents.

    Args:
        buckets: bucket of each entry, uint64 [entries].
        documents: document of each entry, int64 [entries].
    """
    order = np.lexsort((documents, buckets))
    buckets, documents = buckets[order], documents[order]
    pieces = [np.zeros((0, 2), np.int64)]
    for distance in range(1, REACH + 1):
        same = buckets[distance:] == buckets[:-distance]
        if not same.any():
            break
        pieces.append(np.stack([documents[:-distance][same], documents[distance:][same]], axis=1))
    starts = np.flatnonzero(np.concatenate([[True], buckets[1:] != buckets[:-1]])) if len(buckets) else buckets[:0]
    first = np.repeat(starts, np.diff(np.append(starts, len(buckets))).astype(np.int64)).astype(np.int64)
    far = np.arange(len(buckets)) - first > REACH
    pieces.append(np.stack([documents[first[far]], documents[far]], axis=1))
    pairs = np.concatenate(pieces)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def duplicates(parts: ChunkParts, pairs: np.ndarray, threshold: float | None) -> Iterator[np.ndarray]:
    """Yields the candidate pairs that are duplicates, in batches, int64 [pairs, 2].

    Args:
        parts: the chunks of all documents.
        pairs: candidate pairs, int64 [pairs, 2].
        threshold: minimum estimated Jaccard similarity of duplicates; None if only equal normalised texts count as
            duplicates.
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


_opened = lru_cache(maxsize=64)(read_batch)
