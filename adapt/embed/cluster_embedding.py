"""Embeds texts on the cluster: tasks read chunks of texts, and actors embed them and write the vectors.

Only the texts determine the chunks and the batches within them, so neither the number of actors nor their order of
completion changes a vector. Chunks that are already written are not embedded again. Before a large source is embedded,
a sample of its texts shows whether the embedder knows their words (`look_first`).
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
    """Actor that embeds chunks, one after another.

    Args:
        embedder: the embedder, not loaded yet.
        learnt: folder that `Embedder.learn` wrote; None if the embedder does not learn.
        folder: folder for the vectors.
        stored: number type of the stored vectors.
        threads: number of CPU threads.
    """

    def __init__(self, embedder: Embedder, learnt: Path | None, folder: Path, stored: StoredType, threads: int) -> None:
        hide_unreserved_gpus()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for libraries that are loaded later
        self._embedder, self._learnt = embedder, learnt
        self._folder, self._stored = folder, stored
        self._is_loaded = False

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Embeds a chunk, writes its vectors to a file, and returns its counts."""
        (row,) = table.to_pylist()
        file = self._folder / chunk_file(row["item"], row["chunk"])
        counts = known_counts(file) or self._embed(row, file)
        known = {"item": row["item"], "text_bytes": text_bytes(table), "tally": row["tally"]}
        return {name: [value] for name, value in {**known, **counts}.items()}

    def _embed(self, row: dict[str, Any], file: Path) -> dict[str, int]:
        if not row["texts"]:
            return {"documents": 0, "dimension": 0, "seen": 0, "unknown": 0}
        if not self._is_loaded:  # loaded only here, so that no model is loaded if all chunks are written already
            self._embedder.load(self._learnt)
            self._is_loaded = True
        embedded = self._embedder.embed(row["texts"])
        finite = np.isfinite(embedded.vectors).all(1)
        if not finite.all():
            raise DataError(
                f"the vector of the text with id {row['ids'][int(np.flatnonzero(~finite)[0])]} is not finite",
                "check the model's weights, or choose another embedder",
            )
        documents, dimension = embedded.vectors.shape
        counts = {"documents": documents, "dimension": dimension, "seen": embedded.seen, "unknown": embedded.unknown}
        write_vectors(file, np.array(row["ids"], np.int64), scaled(embedded.vectors).astype(self._stored), counts)
        return counts


@dataclass(frozen=True)
class EmbeddedCounts:
    """Size of the embedding, and the share of text that the embedder does not know."""

    documents: int
    dimension: int
    unknown_share: float
    """Share of tokens that the embedder does not know. For embedders that count words, the share of texts without a
    known word."""


def embed_texts(
    source: TextSource,
    embedder: Embedder,
    learnt: Path | None,
    folder: Path,
    resources: ResourcesConfig,
    stored: StoredType = "float16",
) -> EmbeddedCounts:
    """Writes the vectors of all texts into `folder`, on the cluster to which this process is connected.

    Args:
        source: the texts.
        embedder: the embedder, not loaded yet.
        learnt: folder that `Embedder.learn` wrote; None if the embedder does not learn.
        folder: folder for the vectors; it may contain vectors of an interrupted run.
        resources: determines the number of GPUs per actor.
        stored: number type of the stored vectors.

    Raises:
        DataError: there is no text, too many records cannot be read, a vector is not finite, or too much of the text is
            unknown to the embedder.
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
"""Size from which a sample of a source is checked first [bytes]. Embedding a smaller source takes about as long as the
check."""
PLACES, TEXTS_A_PLACE = 16, 16
CLEARLY = 2.0
"""Factor by which the unknown share of a sample must exceed the limit for all texts, so that the embedder is
rejected."""


def look_first(
    source: TextSource, embedder: Embedder, learnt: Path | None, folder: Path, resources: ResourcesConfig
) -> None:
    """Checks on a sample, in one task of the cluster, that the embedder knows enough of a large source.

    Args:
        source: the texts.
        embedder: the embedder, not loaded yet.
        learnt: folder that `Embedder.learn` wrote; None if the embedder does not learn.
        folder: folder of the stage.
        resources: determines the number of GPUs of the task.

    Raises:
        DataError: too much of the sample is unknown to the embedder.
        ModelError: the model cannot be used.
    """
    if sum(source.pace().sizes) < LARGE_BYTES:
        return
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(_unknown_share)
    with user_errors():
        share = ray.get(task.remote(source.reader(folder), some_of(source.items()), embedder, learnt))
    check_known(share, CLEARLY * MAX_UNKNOWN_FRACTION)


def some_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns up to PLACES items, evenly spread over the list."""
    places = min(PLACES, len(items))
    return [items[place * len(items) // places] for place in range(places)]


def check_known(share: float, most: float = MAX_UNKNOWN_FRACTION) -> None:
    """Checks that the unknown share of the text does not exceed a limit.

    Raises:
        DataError: the share exceeds the limit.
    """
    if share > most:
        raise DataError(
            f"{share:.0%} of the text is unknown to the embedder",
            "choose a model whose tokenizer knows this language and script, or an embedder that learns from the pool",
        )


def _unknown_share(read: ReadChunks, items: list[dict[str, Any]], embedder: Embedder, learnt: Path | None) -> float:
    """Returns the share of the first texts of some items that the embedder does not know."""
    hide_unreserved_gpus()
    texts: list[str] = []
    for item in items:
        batch = {name: [value] for name, value in item.items()}
        chunks = (table.to_pylist()[0]["texts"] for table in read(batch))
        texts += islice((text for chunk in chunks for text in chunk), TEXTS_A_PLACE)
    if not texts:
        return 0.0
    embedder.load(learnt)
    embedded = embedder.embed(texts)
    return embedded.unknown / max(embedded.seen, 1)
