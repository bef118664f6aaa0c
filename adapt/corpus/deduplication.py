"""Stage `dedup`: finds documents that are duplicates of an earlier document, over all files and sources.

Tasks read and clean documents like stage `prepare`. For each document they write a digest, a signature, and hashes
called buckets; two documents with a common bucket may be duplicates. The range of buckets is divided into partitions,
and a task per partition finds pairs of duplicates. The connected components of the pairs are the clusters, and the
first document of each cluster in stream order is kept. The result does not depend on the numbers of workers and
partitions, nor on the order in which tasks end.

No document may be trained on if losses are measured on a copy of this document. Function `deduplicate` therefore has an
argument `before`: sources that keep all documents. If a source in `before` holds out a document, copies of this
document in other sources are not trained on. If a source in `before` trains on a document, copies of it in other
sources are not held out (`documents_left_out`).
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy
from scipy.sparse import coo_array, csgraph
from xxhash import xxh3_128_intdigest

from adapt.config import CorpusConfig
from adapt.corpus import screening, shingles, token_shards
from adapt.corpus.files.manifest import Manifest, numbered_items
from adapt.corpus.heldout import MEASURED, TRAINED, in_share, keys_of_normalised
from adapt.corpus.minhash import (
    ChunkParts,
    DuplicateRule,
    band_hashes,
    candidates,
    duplicates,
    signatures,
    write_chunk,
)
from adapt.corpus.prepare_corpus import CHUNK_CHARACTERS, WAITING_BYTES, Read, screen_of
from adapt.corpus.read_progress import Pace, Piece, text_bytes, watched
from adapt.ray.node_files import OnNode
from adapt.ray.runtime import data_settings, telling_stalls, user_errors
from adapt.support.heartbeat import Steady
from adapt.support.schema import duplicates_file

ENTRIES_PER_PARTITION = 8_000_000
"""Number of (bucket, document) entries in a partition. Sorting this many takes about 400 MB of memory."""
PAIRS_HELD = 4_000_000
"""Maximum number of pairs of documents in memory. Above this number, the pairs are reduced to one pair per
duplicate."""
Source = tuple[str, Manifest, CorpusConfig]
"""The name, the files and the settings of a source."""


@dataclass(frozen=True)
class Sign:
    """The Ray Data task that writes the digests, signatures and buckets of a chunk's documents."""

    source: int
    folder: Path
    alike: DuplicateRule
    heldout_fraction: float

    def __call__(self, table: pa.Table) -> dict[str, list[int]]:
        """Writes the chunk's files, and returns the chunk's key, number of documents and bytes of text.

        The column `is_last` is 1 if the chunk is the last one of its item.
        """
        os.environ["RAYON_NUM_THREADS"] = "1"  # rensa uses one thread, because several tasks run in parallel
        row = table.to_pylist()[0]
        key = (self.source, row["item"], row["chunk"])
        sign_chunk(self.folder, key, row["texts"], self.alike, self.heldout_fraction)
        result = {"source": key[0], "item": key[1], "chunk": key[2], "documents": len(row["texts"])}
        result |= {"text_bytes": text_bytes(table), "is_last": int(bool(row["tally"]))}
        return {name: [value] for name, value in result.items()}


def sign_chunk(
    folder: Path, key: tuple[int, int, int], texts: Sequence[str], alike: DuplicateRule, heldout_fraction: float = 0.0
) -> None:
    """Writes the digests, signatures and buckets of a chunk's documents (see `adapt.corpus.minhash`)."""
    plain = shingles.normalised_texts(texts)
    integers = [xxh3_128_intdigest(text) for text in plain]
    digests = np.array([(value >> 64, value % 2**64) for value in integers], np.uint64).reshape(-1, 2)
    signed, buckets = np.zeros((len(plain), 0), np.uint32), digests[:, :1]
    if alike.near:
        signed = signatures([text.decode() for text in plain], alike.n, alike.permutations)
        buckets = np.concatenate([buckets, band_hashes(signed, *alike.bands)], axis=1)
    heldout = in_share(keys_of_normalised(plain), heldout_fraction).astype(np.uint8)
    write_chunk(folder, key, digests, signed, buckets, heldout)


@dataclass(frozen=True)
class Match:
    """The Ray Data task that finds the duplicates among the documents with buckets in a partition."""

    parts: ChunkParts
    partitions: int
    threshold: float | None

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Finds the duplicates of the partitions in a batch.

        Returns:
            A row per duplicate, with columns `document` (the duplicate) and `first` (the first document of the
            duplicate's cluster). The clusters are computed from the partitions of this batch only.
        """
        pairs = [
            reduced(some)
            for partition in batch["id"]
            for some in duplicates(self.parts, self._candidates(int(partition)), self.threshold)
        ]
        linked = reduced(np.concatenate([np.zeros((0, 2), np.int64), *pairs]))
        return {"first": linked[:, 0], "document": linked[:, 1]}

    def _candidates(self, partition: int) -> np.ndarray:
        low, high = ((partition + end) * 2**64 // self.partitions for end in (0, 1))
        return candidates(*self.parts.bucket_slices(low, high - 1))


def deduplicate(
    sources: Sequence[Source],
    alike: DuplicateRule,
    folder: Path,
    entity_field: str | None = None,
    before: Sequence[Source] = (),
    stall_s: float | None = None,
) -> dict[str, Any]:
    """Writes `duplicates-SOURCE.arrow` (item, ordinal, reason) for each source into `folder`.

    Args:
        sources: names, files and settings of the sources, in stream order. In a source with `deduplicate: none`,
            documents are left out only because of `before`, not because they are duplicates.
        alike: settings that decide which documents are duplicates.
        folder: folder of the stage. Its content is deleted first.
        entity_field: field of the records that holds entities, as in stage `prepare`. The field is needed here, because
            records with malformed entities are dropped before documents get their ordinals (numbers within an item).
        before: sources that come before `sources` and lose no documents. A training document of `sources` is left out
            if `before` holds out a copy of it, and a held-out document if `before` trains on a copy of it.
        stall_s: time after which a task without progress is ended [s]; see `adapt.support.heartbeat`.

    Returns:
        Metrics: numbers of documents and duplicates, in total and by source, and the number of documents that were left
            out because of `before`.

    Raises:
        DataError: a file is broken.
    """
    for leftover in folder.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    work = folder / "work"
    work.mkdir()
    pool = TaskPoolStrategy(size=max(1, int(ray.cluster_resources().get("CPU", 1))))
    chunks: list[dict[str, int]] = []
    with user_errors(), data_settings(WAITING_BYTES, target_max_block_size=1):
        for number, (_, manifest, corpus) in enumerate([*before, *sources]):
            read = Read(corpus, CHUNK_CHARACTERS, entity_field, screen_of(replace(corpus, write_rejects=False), folder))
            if items := numbered_items(manifest, corpus):
                signed = (
                    ray.data.from_items(items)
                    .map_batches(
                        OnNode(Steady(read, "reading", folder, stall_s), fetches=False),
                        batch_size=1,
                        batch_format="numpy",
                        num_cpus=0.05,
                        compute=pool,
                    )
                    .map_batches(
                        OnNode(
                            Steady(Sign(number, work, alike, corpus.heldout_fraction), "signing", folder, stall_s),
                            fetches=False,
                        ),
                        batch_size=1,
                        batch_format="pyarrow",
                        num_cpus=0.9,
                        compute=pool,
                    )
                )
                chunks += watched(signed.iter_rows(), Pace.of(items, manifest, corpus), "dedup", _piece, folder)
        parts = parts_of(work, chunks)
        partitions = max(1, ceil(int(parts.starts[-1]) * (1 + alike.bands[0]) / ENTRIES_PER_PARTITION))
        match = Match(parts, partitions, alike.threshold if alike.near else None)
        matched = ray.data.range(partitions, override_num_blocks=partitions).map_batches(
            OnNode(Steady(match, "matching", folder, stall_s)), batch_size=1, compute=pool, num_cpus=0.9
        )
        with telling_stalls("dedup", folder):
            linked = merged(
                np.stack([b["first"], b["document"]], axis=1) for b in matched.iter_batches(batch_size=None)
            )
    documents, firsts = clusters(linked)
    heldout = parts.values(documents, "heldout")[:, 0] if len(documents) else np.zeros(0, np.uint8)
    duplicate, opposed = documents_left_out(firsts, parts.sources(documents), heldout.astype(bool), len(before))
    thinned = np.array([corpus.deduplicate != "none" for _, _, corpus in (*before, *sources)], bool)
    duplicate &= thinned[parts.sources(documents)]
    reasons = np.where(opposed, np.where(heldout, TRAINED, MEASURED), screening.DUPLICATE)
    leaves = duplicate | opposed
    for number in range(len(sources)):
        file = folder / duplicates_file(number)
        write_duplicates(file, parts, documents[leaves], reasons[leaves], len(before) + number)
    names = [name for name, _, _ in (*before, *sources)]
    metrics = _metrics(names, parts, firsts, documents[leaves])
    shutil.rmtree(work)
    return {**metrics, **({"on_the_other_side": int(opposed.sum())} if before else {})}


def _piece(chunk: dict[str, Any]) -> Piece:
    return Piece(int(chunk["item"]), int(chunk["documents"]), int(chunk["text_bytes"]), bool(chunk["is_last"]))


def parts_of(folder: Path, chunks: Iterable[dict[str, int]]) -> ChunkParts:
    """Returns the chunks in stream order, and numbers their documents consecutively over all chunks."""
    columns = ("source", "item", "chunk", "documents")
    rows = np.array(sorted(tuple(int(c[name]) for name in columns) for c in chunks), np.int64).reshape(-1, 4)
    return ChunkParts(folder, rows[:, :3], np.concatenate([[0], np.cumsum(rows[:, 3])]).astype(np.int64))


def merged(batches: Iterable[np.ndarray]) -> np.ndarray:
    """Joins batches of pairs, and reduces the joined pairs (`reduced`) to one pair per duplicate.

    The pairs are reduced whenever there are more than PAIRS_HELD, so memory grows with the number of duplicates and not
    with the number of pairs.
    """
    held = [np.zeros((0, 2), np.int64)]
    for pairs in batches:
        held.append(pairs)
        if sum(map(len, held)) > PAIRS_HELD:
            held = [reduced(np.concatenate(held))]
    return reduced(np.concatenate(held))


def write_duplicates(file: Path, parts: ChunkParts, dropped: np.ndarray, reasons: np.ndarray, source: int) -> None:
    """Writes an Arrow file with a row per document that a source loses: its item, its ordinal there, and the reason.

    `adapt.corpus.screening.Sieve` defines ordinals.

    Args:
        file: file to write.
        parts: the chunks of all sources.
        dropped: ascending numbers of the documents to leave out, over all sources, int64.
        reasons: reason for each of these documents.
        source: index of the source whose documents are written.
    """
    of_part = np.searchsorted(parts.starts, dropped, "right") - 1
    first_of_item = np.searchsorted(_items(parts.keys), _items(parts.keys[of_part]))
    ordinals = dropped - parts.starts[first_of_item]
    mine = parts.keys[of_part, 0] == source
    why = pa.array(reasons[mine].tolist(), pa.string())
    batch = pa.record_batch({"item": parts.keys[of_part, 1][mine], "ordinal": ordinals[mine], "reason": why})
    token_shards.write_batch(file, batch)


def _items(keys: np.ndarray) -> np.ndarray:
    """Returns one number per chunk that identifies its source and item. The numbers ascend in stream order."""
    numbers: np.ndarray = keys[:, 0] * 2**40 + keys[:, 1]
    return numbers


def clusters(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the clusters of documents that are linked by pairs.

    A cluster is a connected component of the graph of pairs (computed by SciPy). The result does not depend on the
    order of the pairs.

    Args:
        pairs: numbers of documents, int64 [pairs, 2].

    Returns:
        Two arrays, int64 [documents]: the documents that are in a pair, in ascending order; and for each of them, the
            first document of its cluster.
    """
    documents, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(-1, 2)
    size = len(documents)
    graph = coo_array((np.ones(len(places), bool), (places[:, 0], places[:, 1])), shape=(size, size))
    _, labels = csgraph.connected_components(graph, directed=False) if size else (0, np.zeros(0, np.int64))
    # documents are in ascending order, so the first document of a cluster has the smallest number
    _, first = np.unique(labels, return_index=True)
    return documents, documents[first[labels]] if size else documents


def documents_left_out(
    firsts: np.ndarray, sources: np.ndarray, heldout: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Decides which documents of clusters are left out.

    All documents of the first `before` sources stay. A document of a later source is left out in two cases. First, as a
    duplicate: its cluster contains an earlier document that is not of the first `before` sources either. Second, to
    separate training from held-out text: the document is for training and its cluster has a held-out document of the
    first `before` sources, or the document is held out and its cluster has a training document of these sources.

    Args:
        firsts: first document of each document's cluster, for documents in stream order, int64 [documents].
        sources: index of each document's source, int64 [documents].
        heldout: whether each document is held out, bool [documents].
        before: number of sources at the beginning of the list that lose no documents.

    Returns:
        Two arrays, bool [documents]: whether each document is left out in the first case, and whether in the second.
    """
    _, clusters = np.unique(firsts, return_inverse=True)
    mine, size = sources >= before, int(clusters.max(initial=-1)) + 1
    _, kept = np.unique(clusters[mine], return_index=True)
    duplicate = mine.copy()
    duplicate[np.flatnonzero(mine)[kept]] = False
    beside = np.zeros((2, size), bool)
    beside[heldout[~mine].astype(np.int64), clusters[~mine]] = True
    return duplicate, mine & beside[1 - heldout.astype(np.int64), clusters]


def reduced(pairs: np.ndarray) -> np.ndarray:
    """Returns a minimal set of pairs with the same clusters (see `clusters`) as the given pairs.

    Returns:
        A pair (first document of the cluster, document) for each document that is not the first of its cluster: int64
        [pairs, 2].
    """
    documents, first = clusters(pairs)
    linked = documents != first
    return np.stack([first[linked], documents[linked]], axis=1)


def _metrics(names: list[str], parts: ChunkParts, firsts: np.ndarray, dropped: np.ndarray) -> dict[str, Any]:
    """Counts the documents and duplicates, in total and by source.

    Args:
        names: names of the sources.
        parts: the chunks of all sources.
        firsts: first document of the cluster of each document in a cluster, int64 [documents].
        dropped: numbers of the documents that are left out, int64.
    """
    read = np.bincount(parts.keys[:, 0], np.diff(parts.starts), len(names)).astype(int)
    left_out = np.bincount(parts.sources(dropped), minlength=len(names))
    return {
        "documents": int(read.sum()),
        "duplicates": int(left_out.sum()),
        "clusters": len(np.unique(firsts)),
        "by_source": {
            name or "corpus": {"documents": int(all_), "duplicates": int(left)}
            for name, all_, left in zip(names, read, left_out, strict=True)
        },
    }
