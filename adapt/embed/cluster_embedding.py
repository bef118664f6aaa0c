"""Embeds texts on the cluster: tasks read, actors embed a chunk of texts each and write its vectors.

The texts alone decide which texts a chunk has and which of them pass a model together, so neither the number of actors
nor the order in which they end changes a vector. Chunks that were written already are not embedded again. Before a
large source is embedded, a few texts from all over it show whether the embedder knows them (`look_first`).
"""

import os
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, TaskPoolStrategy

from adapt.config import ResourcesConfig
from adapt.corpus.prepare_corpus import MAX_UNKNOWN_FRACTION, WAITING_BYTES
from adapt.corpus.read_progress import Piece, text_bytes, watched
from adapt.embed.embedder import Embedder
from adapt.embed.text_chunks import ReadChunks, TextSource, total_of
from adapt.embed.vector_files import chunk_file, known_counts, vector_files, write_vectors
from adapt.index.parts import scaled
from adapt.ray.runtime import data_settings, gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.runner.files import remove_asides
from adapt.support.errors import DataError

StoredType = Literal["float16", "float32"]


class EmbedChunks:
    """In an actor: embeds chunks, one after another.

    Args:
        embedder: not loaded yet.
        learnt: folder of what it has learnt.
        folder: for the vectors.
        stored: type of the numbers.
        threads: to calculate with on a CPU.
    """

    def __init__(self, embedder: Embedder, learnt: Path | None, folder: Path, stored: StoredType, threads: int) -> None:
        hide_unreserved_gpus()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for what is loaded later
        self._embedder, self._learnt = embedder, learnt
        self._folder, self._stored = folder, stored
        self._is_loaded = False

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Counts of a chunk; its vectors go to a file."""
        (row,) = table.to_pylist()
        file = self._folder / chunk_file(row["item"], row["chunk"])
        counts = known_counts(file) or self._embed(row, file)
        known = {"item": row["item"], "text_bytes": text_bytes(table), "tally": row["tally"]}
        return {name: [value] for name, value in {**known, **counts}.items()}

    def _embed(self, row: dict[str, Any], file: Path) -> dict[str, int]:
        if not row["texts"]:
            return {"documents": 0, "dimension": 0, "seen": 0, "unknown": 0}
        if not self._is_loaded:  # a run with nothing left to embed loads no model
            self._embedder.load(self._learnt)
            self._is_loaded = True
        found = self._embedder.embed(row["texts"])
        finite = np.isfinite(found.vectors).all(1)
        if not finite.all():
            raise DataError(
                f"the vector of the text with id {row['ids'][int(np.flatnonzero(~finite)[0])]} is not finite",
                "check the model's weights, or choose another embedder",
            )
        documents, dimension = found.vectors.shape
        counts = {"documents": documents, "dimension": dimension, "seen": found.seen, "unknown": found.unknown}
        write_vectors(file, np.array(row["ids"], np.int64), scaled(found.vectors).astype(self._stored), counts)
        return counts


@dataclass(frozen=True)
class EmbeddedCounts:
    """What was embedded."""

    documents: int
    dimension: int
    unknown_share: float
    """Share of the tokens (of texts, where words are counted) that the embedder does not know."""


def embed_texts(
    source: TextSource,
    embedder: Embedder,
    learnt: Path | None,
    folder: Path,
    resources: ResourcesConfig,
    stored: StoredType = "float16",
) -> EmbeddedCounts:
    """Writes the vectors of all texts into `folder`, on the cluster this process is connected to.

    Args:
        source: the texts.
        embedder: not loaded yet.
        learnt: folder of what it has learnt.
        folder: may hold vectors of a run that died.
        resources: how many GPUs an actor has.
        stored: type of the numbers.

    Raises:
        DataError: there is no text, too many records cannot be read, a vector is not finite, or the embedder knows too
            little of the texts.
        ModelError: the model cannot be used.
    """
    remove_asides(folder)
    if not vector_files(folder):
        look_first(source, embedder, learnt, folder, resources)
    gpus, totals = gpus_per_worker(resources), ray.cluster_resources()
    cpus = max(1, int(totals.get("CPU", 1)))
    actors = max(1, int(totals.get("GPU", 0) / gpus)) if gpus else cpus
    with user_errors(), data_settings(WAITING_BYTES, target_max_block_size=1):
        embedded = (
            ray.data.from_items(source.items())
            .map_batches(
                source.reader(folder),
                batch_size=1,
                batch_format="numpy",
                num_cpus=0.05,
                compute=TaskPoolStrategy(size=cpus),
            )
            .map_batches(
                EmbedChunks,
                fn_constructor_args=(embedder, learnt, folder, stored, 1),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=0.9,
                num_gpus=gpus or None,
                compute=ActorPoolStrategy(min_size=1, max_size=actors),
            )
        )
        chunks = watched(embedded.iter_rows(), source.pace(), "embed", _piece)
    source.check(total_of((int(chunk["item"]), chunk["tally"]) for chunk in chunks if chunk["tally"]))
    counts = Counter[str]()
    for chunk in chunks:
        counts.update({name: int(chunk[name]) for name in ("documents", "seen", "unknown")})
    if not counts["documents"]:
        raise DataError("there is no text to embed", "check the paths of the pool, its text_field, and its cleaning")
    share = counts["unknown"] / max(counts["seen"], 1)
    check_known(share)
    return EmbeddedCounts(counts["documents"], max(int(chunk["dimension"]) for chunk in chunks), share)


def _piece(chunk: dict[str, Any]) -> Piece:
    return Piece(int(chunk["item"]), int(chunk["documents"]), int(chunk["text_bytes"]), bool(chunk["tally"]))


LARGE_BYTES = 64_000_000
"""A source with less is embedded about as fast as it is looked at."""
PLACES, TEXTS_A_PLACE = 16, 16
CLEARLY = 2.0
"""A few texts speak against an embedder where they hold so many times what is allowed of all texts."""


def look_first(
    source: TextSource, embedder: Embedder, learnt: Path | None, folder: Path, resources: ResourcesConfig
) -> None:
    """Refuses an embedder that clearly knows too little of a large source, in one task of the cluster.

    Args:
        source: the texts.
        embedder: not loaded yet.
        learnt: folder of what it has learnt.
        folder: of the stage.
        resources: how many GPUs the task has.

    Raises:
        DataError: the embedder knows too little.
        ModelError: the model cannot be used.
    """
    if sum(source.pace().sizes) < LARGE_BYTES:
        return
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(_unknown_share)
    with user_errors():
        share = ray.get(task.remote(source.reader(folder), some_of(source.items()), embedder, learnt))
    check_known(share, CLEARLY * MAX_UNKNOWN_FRACTION)


def some_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items evenly from all over."""
    places = min(PLACES, len(items))
    return [items[place * len(items) // places] for place in range(places)]


def check_known(share: float, most: float = MAX_UNKNOWN_FRACTION) -> None:
    """Refuses an embedder to which more than a share of what it is given is unknown.

    Raises:
        DataError: so it is.
    """
    if share > most:
        raise DataError(
            f"the embedder knows nothing of {share:.0%} of what it was given",
            "choose a model whose tokenizer knows this language and script, or an embedder that learns from the pool",
        )


def _unknown_share(read: ReadChunks, items: list[dict[str, Any]], embedder: Embedder, learnt: Path | None) -> float:
    """What the embedder does not know of the first texts of items."""
    hide_unreserved_gpus()
    texts: list[str] = []
    for item in items:
        batch = {name: [value] for name, value in item.items()}
        chunks = (table.to_pylist()[0]["texts"] for table in read(batch))
        texts += islice((text for chunk in chunks for text in chunk), TEXTS_A_PLACE)
    if not texts:
        return 0.0
    embedder.load(learnt)
    found = embedder.embed(texts)
    return found.unknown / max(found.seen, 1)
