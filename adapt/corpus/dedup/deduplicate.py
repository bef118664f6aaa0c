"""Stage `dedup`: which documents of some sources are duplicates of one that comes before, over all files and sources.

Near copies must not stand on both sides either, one measured and one trained on: sources that come before, which are
not thinned out, say what has to give way (`adapt.corpus.dedup.clusters.kept_apart`).

Tasks read and clean as `prepare` does and write a digest, a signature and the sorted buckets of each document. Then
each partition of the buckets (a range of hashes) gives pairs of duplicates, and their clusters keep the document that
comes first in stream order. Neither the number of workers nor that of partitions, nor the order in which tasks end
changes what is kept.
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
from xxhash import xxh3_128_intdigest

from adapt.config import CorpusConfig
from adapt.corpus.dedup.buckets import ChunkParts, candidates, duplicates, write_chunk
from adapt.corpus.dedup.clusters import clusters, kept_apart, reduced
from adapt.corpus.dedup.minhash import band_hashes, bands_for, signatures
from adapt.corpus.dedup.report import write_dedup_report
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.normal import normalised_texts
from adapt.corpus.screening.clean import DUPLICATE
from adapt.corpus.screening.heldout import MEASURED, TRAINED, in_share, keys_of_normalised
from adapt.corpus.screening.screen import screen_of
from adapt.corpus.shards.prepare import CHUNK_CHARACTERS, WAITING_BYTES, Read, numbered_items
from adapt.corpus.watch import Pace, Piece, text_bytes, watched
from adapt.ray.runtime import data_settings, user_errors

ENTRIES_PER_PARTITION = 8_000_000
"""Buckets that a task sorts at once: some 400 MB of memory."""
PAIRS_HELD = 4_000_000
EXCERPT_CHARACTERS = 200
Source = tuple[str, Manifest, CorpusConfig]
"""A name, its files, and how they are read."""


@dataclass(frozen=True)
class Alike:
    """What counts as alike."""

    near: bool
    n: int = 5
    """Words of a shingle."""
    permutations: int = 256
    threshold: float = 0.8

    @classmethod
    def of(cls, corpus: CorpusConfig) -> "Alike":
        """The settings of a configuration."""
        near = corpus.deduplicate == "near"
        return cls(near, corpus.near_ngram, corpus.near_permutations, corpus.near_threshold)

    @property
    def bands(self) -> tuple[int, int]:
        """Bands, and rows of each."""
        return bands_for(self.threshold, self.permutations) if self.near else (0, 0)


@dataclass(frozen=True)
class Sign:
    """Writes what is to be known of a chunk's documents."""

    source: int
    folder: Path
    alike: Alike
    heldout_fraction: float

    def __call__(self, table: pa.Table) -> dict[str, list[int]]:
        """The chunk's key, its number of documents, bytes of text, and whether it is the last of its item."""
        os.environ["RAYON_NUM_THREADS"] = "1"  # rensa's; the tasks are the parallelism
        row = table.to_pylist()[0]
        key = (self.source, row["item"], row["chunk"])
        sign_chunk(self.folder, key, row["texts"], self.alike, self.heldout_fraction)
        result = {"source": key[0], "item": key[1], "chunk": key[2], "documents": len(row["texts"])}
        result |= {"text_bytes": text_bytes(table), "is_last": int(bool(row["tally"]))}
        return {name: [value] for name, value in result.items()}


def sign_chunk(
    folder: Path, key: tuple[int, int, int], texts: Sequence[str], alike: Alike, heldout_fraction: float = 0.0
) -> None:
    """Writes digests, signatures and buckets of a chunk; see `adapt.corpus.dedup.buckets`."""
    plain = normalised_texts(texts)
    integers = [xxh3_128_intdigest(text) for text in plain]
    digests = np.array([(value >> 64, value % 2**64) for value in integers], np.uint64).reshape(-1, 2)
    signed, buckets = np.zeros((len(plain), 0), np.uint32), digests[:, :1]
    if alike.near:
        signed = signatures([text.decode() for text in plain], alike.n, alike.permutations)
        buckets = np.concatenate([buckets, band_hashes(signed, *alike.bands)], axis=1)
    heldout = in_share(keys_of_normalised(plain), heldout_fraction).astype(np.uint8)
    write_chunk(folder, key, digests, signed, buckets, [text[:EXCERPT_CHARACTERS] for text in texts], heldout)


@dataclass(frozen=True)
class Match:
    """Finds the duplicates of a partition."""

    parts: ChunkParts
    partitions: int
    threshold: float | None

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns `first` and `document`: each duplicate with the first of those in this partition it is linked to."""
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
    alike: Alike,
    folder: Path,
    entity_field: str | None = None,
    before: Sequence[Source] = (),
) -> dict[str, Any]:
    """Writes `duplicates-SOURCE.arrow` (item, ordinal, reason) for each source, and the report, into `folder`.

    Args:
        sources: names, files and settings; in stream order. A source whose `deduplicate` is none leaves out only copies
            on the other side of `before`.
        alike: what counts as alike.
        folder: emptied first.
        entity_field: of the records, as `prepare` will read it, for records with malformed entities have no ordinal.
        before: sources that stay as they are, and that the others must stay apart from.

    Returns:
        Metrics: documents and duplicates, in all and by source; and how many duplicates were left out because `before`
        has a copy on the other side.

    Raises:
        DataError: a file is broken.
    """
    import ray
    from ray.data import TaskPoolStrategy

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
                    .map_batches(read, batch_size=1, batch_format="numpy", num_cpus=0.05, compute=pool)
                    .map_batches(
                        Sign(number, work, alike, corpus.heldout_fraction),
                        batch_size=1,
                        batch_format="pyarrow",
                        num_cpus=0.9,
                        compute=pool,
                    )
                )
                chunks += watched(signed.iter_rows(), Pace.of(items, manifest, corpus), "dedup", _piece)
        parts = parts_of(work, chunks)
        partitions = max(1, ceil(int(parts.starts[-1]) * (1 + alike.bands[0]) / ENTRIES_PER_PARTITION))
        match = Match(parts, partitions, alike.threshold if alike.near else None)
        matched = ray.data.range(partitions, override_num_blocks=partitions).map_batches(
            match, batch_size=1, compute=pool, num_cpus=0.9
        )
        linked = merged(np.stack([b["first"], b["document"]], axis=1) for b in matched.iter_batches(batch_size=None))
    documents, firsts = clusters(linked)
    heldout = parts.values(documents, "heldout")[:, 0] if len(documents) else np.zeros(0, np.uint8)
    duplicate, opposed = kept_apart(firsts, parts.sources(documents), heldout.astype(bool), len(before))
    thinned = np.array([corpus.deduplicate != "none" for _, _, corpus in (*before, *sources)], bool)
    duplicate &= thinned[parts.sources(documents)]
    reasons = np.where(opposed, np.where(heldout, TRAINED, MEASURED), DUPLICATE)
    leaves = duplicate | opposed
    for number in range(len(sources)):
        file = folder / duplicates_file(number)
        write_duplicates(file, parts, documents[leaves], reasons[leaves], len(before) + number)
    names = [name for name, _, _ in (*before, *sources)]
    metrics = write_dedup_report(folder, names, parts, documents, firsts, leaves, alike.bands)
    shutil.rmtree(work)
    return {**metrics, **({"on_the_other_side": int(opposed.sum())} if before else {})}


def _piece(chunk: dict[str, Any]) -> Piece:
    return Piece(int(chunk["item"]), int(chunk["documents"]), int(chunk["text_bytes"]), bool(chunk["is_last"]))


def duplicates_file(source: int) -> str:
    """Name of the file that lists a source's duplicates."""
    return f"duplicates-{source:03d}.arrow"


def parts_of(folder: Path, chunks: Iterable[dict[str, int]]) -> ChunkParts:
    """The chunks in stream order, whatever the order they come in."""
    columns = ("source", "item", "chunk", "documents")
    rows = np.array(sorted(tuple(int(c[name]) for name in columns) for c in chunks), np.int64).reshape(-1, 4)
    return ChunkParts(folder, rows[:, :3], np.concatenate([[0], np.cumsum(rows[:, 3])]).astype(np.int64))


def merged(batches: Iterable[np.ndarray]) -> np.ndarray:
    """Pairs of many batches, reduced whenever they are many: memory is bounded by the duplicates there are."""
    held = [np.zeros((0, 2), np.int64)]
    for pairs in batches:
        held.append(pairs)
        if sum(map(len, held)) > PAIRS_HELD:
            held = [reduced(np.concatenate(held))]
    return reduced(np.concatenate(held))


def write_duplicates(file: Path, parts: ChunkParts, dropped: np.ndarray, reasons: np.ndarray, source: int) -> None:
    """Writes the item, the ordinal in it and the reason of each document that leaves a source, in order, as Arrow.

    Args:
        file: to write.
        parts: all chunks.
        dropped: numbers of the documents to leave out, in order, int64.
        reasons: why, of each.
        source: whose.
    """
    of_part = np.searchsorted(parts.starts, dropped, "right") - 1
    first_of_item = np.searchsorted(_items(parts.keys), _items(parts.keys[of_part]))
    ordinals = dropped - parts.starts[first_of_item]
    mine = parts.keys[of_part, 0] == source
    why = pa.array(reasons[mine].tolist(), pa.string())
    batch = pa.record_batch({"item": parts.keys[of_part, 1][mine], "ordinal": ordinals[mine], "reason": why})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _items(keys: np.ndarray) -> np.ndarray:
    """One number for the source and item of a chunk, in stream order."""
    numbers: np.ndarray = keys[:, 0] * 2**40 + keys[:, 1]
    return numbers
