"""Stage `dedup`: finds documents that are duplicates of an earlier one, over all files and sources.

Tasks read and clean as `prepare` does, and write a digest, a signature and the sorted buckets of each document. Each
partition of the buckets (a range of hashes) gives pairs of duplicates. The connected components of the pairs are the
clusters, and the first document of each cluster in stream order is kept. The numbers of workers and partitions and the
order in which tasks end do not change the result.

A copy must not be measured on one side and trained on the other. Sources that come before and are not thinned out
decide which of the other documents leave (`kept_apart`).
"""

import json
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
from xxhash import xxh3_128_intdigest

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.heldout import MEASURED, TRAINED, in_share, keys_of_normalised
from adapt.corpus.minhash import (
    ChunkParts,
    band_hashes,
    bands_for,
    candidates,
    duplicates,
    share_probability,
    signatures,
    write_chunk,
)
from adapt.corpus.prepare_corpus import CHUNK_CHARACTERS, WAITING_BYTES, Read, numbered_items, screen_of
from adapt.corpus.read_progress import Pace, Piece, text_bytes, watched
from adapt.corpus.screening import DUPLICATE
from adapt.corpus.shingles import normalised_texts
from adapt.ray.runtime import data_settings, user_errors
from adapt.runner.files import write_atomically

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
    """Writes digests, signatures and buckets of a chunk; see `adapt.corpus.minhash`."""
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


def clusters(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The documents that stand in some pair, each with the first of its cluster.

    A document is in one cluster with all that it can be linked to through pairs (union-find; SciPy's connected
    components). The result is the same for any order of the pairs.

    Args:
        pairs: numbers of documents, int64 [pairs, 2].

    Returns:
        documents in order, and the first document of each one's cluster: int64 [documents] each.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    documents, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(-1, 2)
    size = len(documents)
    graph = coo_array((np.ones(len(places), bool), (places[:, 0], places[:, 1])), shape=(size, size))
    _, labels = connected_components(graph, directed=False) if size else (0, np.zeros(0, np.int64))
    _, first = np.unique(labels, return_index=True)  # documents are in order, so a label's first one is its smallest
    return documents, documents[first[labels]] if size else documents


def kept_apart(
    firsts: np.ndarray, sources: np.ndarray, heldout: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which documents of clusters leave, so that none has a copy beside it, or a copy on the other side before it.

    Documents of the first `before` sources all stay. A document of a later source leaves as a duplicate if it is not
    the first of the later ones in its cluster. A training document of a later source also leaves if its cluster holds
    a held-out document of a first source, and the other way round.

    Args:
        firsts: the first document of each one's cluster, for documents in stream order, int64 [documents].
        sources: of each, int64 [documents].
        heldout: whether it is, bool [documents].
        before: how many sources come first.

    Returns:
        Which are duplicates and which have a copy on the other side: bool [documents] each.
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
    """The fewest pairs with the same clusters: each document with the first of its cluster, int64 [pairs, 2]."""
    documents, first = clusters(pairs)
    linked = documents != first
    return np.stack([first[linked], documents[linked]], axis=1)


LARGEST = 20
EXAMPLES = 3
SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def write_dedup_report(
    folder: Path,
    names: list[str],
    parts: ChunkParts,
    documents: np.ndarray,
    firsts: np.ndarray,
    leaves: np.ndarray,
    bands: tuple[int, int],
) -> dict[str, Any]:
    """Writes `report.json` and `report.md`.

    Args:
        folder: where.
        names: of the sources.
        parts: all documents.
        documents: those in clusters, in order, int64.
        firsts: the first document of each one's cluster, int64.
        leaves: which of them are left out, bool.
        bands: bands and rows; (0, 0) where only equal texts are duplicates.

    Returns:
        The stage's metrics.
    """
    read = np.bincount(parts.keys[:, 0], np.diff(parts.starts), len(names)).astype(int)
    dropped = np.bincount(parts.sources(documents[leaves]), minlength=len(names))
    metrics = {
        "documents": int(read.sum()),
        "duplicates": int(dropped.sum()),
        "clusters": len(np.unique(firsts)),
        "by_source": {
            name or "corpus": {"documents": int(all_), "duplicates": int(left)}
            for name, all_, left in zip(names, read, dropped, strict=True)
        },
    }
    report = {
        **metrics,
        "largest": _largest(parts, documents, firsts),
        "bands": bands[0],
        "rows": bands[1],
        "candidates": {f"{s:g}": round(share_probability(s, *bands), 4) for s in SIMILARITIES} if bands[0] else {},
    }
    write_atomically(folder / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / "report.md", _text(report))
    return metrics


def _largest(parts: ChunkParts, documents: np.ndarray, firsts: np.ndarray) -> list[dict[str, Any]]:
    kept, sizes = np.unique(firsts, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:LARGEST]
    return [
        {
            "documents": int(sizes[cluster]),
            "examples": [parts.excerpt(int(d)) for d in documents[firsts == kept[cluster]][:EXAMPLES]],
        }
        for cluster in largest
    ]


def _text(report: dict[str, Any]) -> str:
    lines = [
        "# Duplicates",
        "",
        f"{report['duplicates']:,} of {report['documents']:,} documents are duplicates, in {report['clusters']:,} "
        "clusters. The first of each cluster is kept.",
        "",
        "| source | documents | duplicates |",
        "|---|---|---|",
        *(f"| {name} | {n['documents']:,} | {n['duplicates']:,} |" for name, n in report["by_source"].items()),
    ]
    if report["bands"]:
        lines += [
            "",
            f"{report['bands']} bands of {report['rows']} rows: probability that two documents are compared, "
            "1 - (1 - s^r)^b.",
            "",
            "| similarity s | " + " | ".join(report["candidates"]) + " |",
            "|---" * (1 + len(report["candidates"])) + "|",
            "| compared | " + " | ".join(f"{p:.3f}" for p in report["candidates"].values()) + " |",
        ]
    lines += ["", "## Largest clusters", ""]
    for cluster in report["largest"]:
        lines.append(f"- {cluster['documents']:,} documents")
        lines += [f"  - {' '.join(example.split())}" for example in cluster["examples"]]
    return "\n".join(lines) + "\n"
