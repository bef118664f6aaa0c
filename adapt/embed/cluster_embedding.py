"""Trains an embedder on a sample of texts, and embeds texts, on the cluster.

Tasks read chunks of texts. Actors embed the chunks and write the vectors. Chunks and the batches within a chunk depend
only on the texts, so neither the number of actors nor the order in which they finish changes a vector. A chunk whose
vectors are already written is not embedded again. Before a large source is embedded, `look_first` checks on a sample
of its texts that the embedder knows their words.

An embedder is trained in one task, on a bounded sample of the texts that will be compared. The sample of a source
consists of the texts with the smallest hashes, so it depends neither on the number of workers nor on the order in which
files are read.
"""

import heapq
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, TaskPoolStrategy

from adapt.config import ResourcesConfig
from adapt.corpus.heldout import in_share, keys_of
from adapt.corpus.prepare_corpus import MAX_UNKNOWN_FRACTION, WAITING_BYTES
from adapt.corpus.read_progress import Piece, text_bytes, watched
from adapt.embed.embedder import Embedder
from adapt.embed.text_chunks import ReadChunks, TextSource, total_of
from adapt.embed.vector_files import chunk_file, known_counts, vector_files, write_vectors
from adapt.index.exact_search import scaled
from adapt.ray import runtime
from adapt.ray.node_files import OnNode, call, on_node
from adapt.runner.files import remove_asides
from adapt.support import heartbeat, splitmix
from adapt.support.errors import DataError
from adapt.train import metric_trackers, worker_process
from adapt.train.training_run import METRICS_FILE, NOTICE_FILE

StoredType = Literal["float16", "float32"]


class EmbedChunks:
    """Actor that embeds chunks, one after another.

    `learnt` is the folder that `Embedder.learn` wrote; None if the embedder does not learn. `stall_s` is described
    at `adapt.support.heartbeat`.
    """

    def __init__(
        self,
        embedder: Embedder,
        learnt: Path | None,
        folder: Path,
        stored: StoredType,
        threads: int,
        stall_s: float | None = None,
    ) -> None:
        runtime.hide_unreserved_gpus()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # libraries that `embedder.load` imports read this variable
        self._embedder, self._learnt = embedder, learnt
        self._folder, self._stored = folder, stored
        self._stall_s, self._is_loaded = stall_s, False

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Embeds a chunk, writes its vectors to a file, and returns its numbers of texts, tokens and unknown tokens."""
        (row,) = table.to_pylist()
        file = self._folder / chunk_file(row["item"], row["chunk"])
        with on_node(self._folder, fetches=False), heartbeat.at_work("embedding", self._folder, self._stall_s):
            counts = known_counts(file) or self._embed(row, file)
        known = {"item": row["item"], "text_bytes": text_bytes(table), "tally": row["tally"]}
        return {name: [value] for name, value in {**known, **counts}.items()}

    def _embed(self, row: dict[str, Any], file: Path) -> dict[str, int]:
        if not row["texts"]:
            return {"documents": 0, "dimension": 0, "seen": 0, "unknown": 0}
        if not self._is_loaded:  # the embedder is loaded only when needed, because all chunks may already be written
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
    """Number of embedded texts, number of their tokens, and the share of text that the embedder does not know."""

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
    """Embeds all texts on the cluster to which this process is connected, and writes the vectors into `folder`.

    `learnt` is the folder that `Embedder.learn` wrote; None if the embedder does not learn. `folder` may contain
    vectors of an interrupted run.

    Raises:
        DataError: there is no text, too many records cannot be read, a vector is not finite, or too much of the text is
            unknown to the embedder.
        ModelError: the model cannot be used.
    """
    remove_asides(folder)
    if not vector_files(folder):
        look_first(source, embedder, learnt, folder, resources)
    gpus, totals = runtime.gpus_per_worker(resources), ray.cluster_resources()
    cpus = max(1, int(totals.get("CPU", 1)))
    actors = max(1, int(totals.get("GPU", 0) / gpus)) if gpus else cpus
    with runtime.batch_errors(embedder.batch_field), runtime.data_settings(WAITING_BYTES, target_max_block_size=1):
        embedded = (
            ray.data.from_items(source.items())
            .map_batches(
                OnNode(heartbeat.Steady(source.reader(folder), "reading", folder, resources.stall_s), fetches=False),
                batch_size=1,
                batch_format="numpy",
                num_cpus=0.05,
                compute=TaskPoolStrategy(size=cpus),
            )
            .map_batches(
                EmbedChunks,
                fn_constructor_args=(embedder, learnt, folder, stored, 1, resources.stall_s),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=0.9,
                num_gpus=gpus or None,
                compute=ActorPoolStrategy(min_size=1, max_size=actors),
            )
        )
        chunks = watched(embedded.iter_rows(), source.pace(), "embed", _piece, folder)
    source.check(total_of((int(chunk["item"]), chunk["tally"]) for chunk in chunks if chunk["tally"]))
    counts = Counter[str]()
    for chunk in chunks:
        counts.update({name: int(chunk[name]) for name in ("documents", "seen", "unknown")})
    if not counts["documents"]:
        raise DataError("there is no text to embed", "check the paths of the pool, its text_field, and its cleaning")
    share = counts["unknown"] / max(counts["seen"], 1)
    check_known(share, learns=embedder.learns)
    return EmbeddedCounts(counts["documents"], max(int(chunk["dimension"]) for chunk in chunks), share)


def _piece(chunk: dict[str, Any]) -> Piece:
    return Piece(int(chunk["item"]), int(chunk["documents"]), int(chunk["text_bytes"]), bool(chunk["tally"]))


LARGE_BYTES = 64_000_000
"""Minimum size of a source for which `look_first` checks a sample [bytes]. Embedding a smaller source takes about as
long as the check would."""
PLACES, TEXTS_A_PLACE = 16, 16
CLEARLY = 2.0
"""The check on a sample fails if the sample's share of unknown text exceeds CLEARLY times the limit that applies to all
texts together."""


def look_first(
    source: TextSource, embedder: Embedder, learnt: Path | None, folder: Path, resources: ResourcesConfig
) -> None:
    """Checks in one cluster task, on a sample of a large source, that the embedder knows enough of the text.

    Sources smaller than LARGE_BYTES are not checked.

    Raises:
        DataError: too much of the sample is unknown to the embedder.
        ModelError: the model cannot be used.
    """
    if sum(source.pace().sizes) < LARGE_BYTES:
        return
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, runtime.gpus_per_worker(resources)))(call)
    with runtime.batch_errors(embedder.batch_field):
        share = ray.get(
            task.remote(OnNode(unknown_share), source.reader(folder), some_of(source.items()), embedder, learnt)
        )
    check_known(share, CLEARLY * MAX_UNKNOWN_FRACTION, embedder.learns)


def some_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns at most PLACES items from a list, evenly spread over the list."""
    places = min(PLACES, len(items))
    return [items[place * len(items) // places] for place in range(places)]


def check_known(share: float, most: float = MAX_UNKNOWN_FRACTION, learns: bool = False) -> None:
    """Checks that the share of text that the embedder does not know is not above the limit `most`.

    Args:
        share: share of unknown tokens or, for an embedder that learns from the pool, of texts without a known word.
        most: the limit.
        learns: whether the embedder learns from the pool.

    Raises:
        DataError: the share exceeds the limit.
    """
    if share > most and learns:
        raise DataError(
            f"{share:.0%} of the texts have no word that the embedder learnt from the pool",
            "use a larger pool with text of the task's language and domain, learn from more documents of it"
            " (sample_documents), or choose an embedder with a model",
        )
    if share > most:
        raise DataError(
            f"{share:.0%} of the text is unknown to the embedder",
            "choose a model whose tokenizer knows this language and script, or an embedder that learns from the pool",
        )


def unknown_share(read: ReadChunks, items: list[dict[str, Any]], embedder: Embedder, learnt: Path | None) -> float:
    """Reads the first texts of each given item. Returns the share of their tokens that the embedder does not know."""
    runtime.hide_unreserved_gpus()
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


BYTES_A_TEXT = 16_000
"""Assumed maximum of the mean text length in a source [bytes]. If the texts of a large source are longer on average,
the sample of the source has fewer texts than requested."""


@dataclass(frozen=True)
class TakeSome:
    """Keeps a share of the texts of a chunk, selected by hash."""

    share: float

    def __call__(self, table: pa.Table) -> pa.Table:
        """Returns the kept texts as a table with a single row, because Ray turns each row into a separate block.

        The row has the keys, ids and texts of the kept texts, the number of the item (the part of the source that one
        task reads), and the item's `Tally` of records if the chunk is the item's last one.
        """
        (row,) = table.to_pylist()
        # hashes the keys once more: the keys themselves decide which documents are held out, and the sample must not
        # depend on that decision
        keys = splitmix.mix(keys_of(row["texts"]))
        taken = in_share(keys, self.share)
        texts = list(compress(row["texts"], taken))
        return pa.table(
            {
                "keys": pa.array([keys[taken]], pa.large_list(pa.uint64())),
                "ids": pa.array([list(compress(row["ids"], taken))], pa.large_list(pa.int64())),
                "texts": pa.array([texts], pa.large_list(pa.large_string())),
                "item": [row["item"]],
                "tally": [row["tally"]],
            }
        )


def sampled_texts(source: TextSource, most: int, folder: Path, stall_s: float | None = None) -> list[str]:
    """Returns a sample of at most `most` texts of a source, in the order of the source."""
    pool = TaskPoolStrategy(size=max(1, int(ray.cluster_resources().get("CPU", 1))))
    share = min(1.0, most * BYTES_A_TEXT / max(sum(source.pace().sizes), 1))
    kept: list[tuple[int, int, str]] = []
    tallies: list[tuple[int, str]] = []

    def steady(function: Callable[..., Any], phase: str) -> OnNode:
        return OnNode(heartbeat.Steady(function, phase, folder, stall_s))

    data = runtime.data_settings(WAITING_BYTES, target_max_block_size=1)
    with runtime.user_errors(), data, runtime.telling_stalls("embed", folder):
        read = ray.data.from_items(source.items()).map_batches(
            steady(source.reader(folder), "reading"), batch_size=1, batch_format="numpy", num_cpus=0.05, compute=pool
        )
        take = steady(TakeSome(share), "sampling")
        some = read.map_batches(take, batch_size=1, batch_format="pyarrow", num_cpus=0.9, compute=pool)
        for row in some.iter_rows():
            if row["tally"]:
                tallies.append((int(row["item"]), row["tally"]))
            for key, id, text in zip(row["keys"], row["ids"], row["texts"], strict=True):
                entry = (-int(key), -int(id), str(text))
                if len(kept) < most:
                    heapq.heappush(kept, entry)
                else:
                    heapq.heappushpop(kept, entry)
    source.check(total_of(tallies))
    return [text for _, text in sorted((-number, text) for _, number, text in kept)]


def learn_embedder(
    embedder: Embedder, sources: Sequence[TextSource], folder: Path, resources: ResourcesConfig
) -> dict[str, float]:
    """Trains an embedder on a sample of each source, in one task of the cluster.

    Raises:
        DataError: there is no text, or too many records cannot be read.
        AdaptError: for the reasons given at `Embedder.learn`.
    """
    most, stall_s = embedder.options.sample_documents, resources.stall_s
    texts = [text for source in sources for text in sampled_texts(source, most, folder, stall_s)]
    if not texts:
        raise DataError("there is no text to learn from", "check the paths of the pool, its text_field and cleaning")
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, runtime.gpus_per_worker(resources)))(call)
    with (
        runtime.batch_errors(embedder.batch_field),
        metric_trackers.following(folder / METRICS_FILE, folder / NOTICE_FILE, "learning from a sample"),
    ):
        figures: dict[str, float] = ray.get(task.remote(OnNode(learn_in_task), embedder, texts, folder))
    return {"texts": len(texts), **figures}


def learn_in_task(embedder: Embedder, texts: list[str], folder: Path) -> dict[str, float]:
    """Trains the embedder on all CPU cores of the machine. This function runs in a task of the cluster."""
    runtime.hide_unreserved_gpus()
    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))  # overrides Ray's limit of one thread
    if "torch" in sys.modules:  # an earlier task of this process may have loaded torch
        worker_process.use_threads()
    return embedder.learn(texts, folder)
