"""Trains an embedder on a bounded sample of the texts that will be compared.

The training runs in one task of the cluster. The sample of a source consists of the texts with the smallest hashes, so
it depends neither on the number of workers nor on the order in which files are read.
"""

import heapq
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy

from adapt.config import ResourcesConfig
from adapt.corpus.heldout import in_share, keys_of
from adapt.corpus.prepare_corpus import WAITING_BYTES
from adapt.embed.embedder import Embedder
from adapt.embed.text_chunks import TextSource, total_of
from adapt.ray.runtime import data_settings, gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.support.errors import DataError
from adapt.support.splitmix import mix
from adapt.train.progress_display import following
from adapt.train.training_run import METRICS_FILE, NOTICE_FILE
from adapt.train.worker_process import use_threads

BYTES_A_TEXT = 16_000
"""Assumed upper limit of the mean length of a text [bytes]. If texts are longer, the sample of a large source has fewer
texts than requested."""


@dataclass(frozen=True)
class TakeSome:
    """Keeps a share of the texts of a chunk, chosen by their hash."""

    share: float

    def __call__(self, table: pa.Table) -> pa.Table:
        """Returns the kept texts as a table of one row, because Ray makes a block of each row.

        The row has keys, ids and texts, and the item's counts if it is the item's last chunk.
        """
        (row,) = table.to_pylist()
        keys = mix(keys_of(row["texts"]))  # mixed again, because held-out texts are chosen by the same keys
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


def sampled_texts(source: TextSource, most: int, folder: Path) -> list[str]:
    """Returns a sample of at most `most` texts of a source, in the order of the source.

    Raises:
        DataError: for the reasons given at `TextSource.check`.
    """
    pool = TaskPoolStrategy(size=max(1, int(ray.cluster_resources().get("CPU", 1))))
    share = min(1.0, most * BYTES_A_TEXT / max(sum(source.pace().sizes), 1))
    kept: list[tuple[int, int, str]] = []
    tallies: list[tuple[int, str]] = []
    with user_errors(), data_settings(WAITING_BYTES, target_max_block_size=1):
        read = ray.data.from_items(source.items()).map_batches(
            source.reader(folder), batch_size=1, batch_format="numpy", num_cpus=0.05, compute=pool
        )
        some = read.map_batches(TakeSome(share), batch_size=1, batch_format="pyarrow", num_cpus=0.9, compute=pool)
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
        DataError: there is no text or too little, or too many records cannot be read.
        AdaptError: for the reasons given at `Embedder.learn`.
    """
    texts = [text for source in sources for text in sampled_texts(source, embedder.options.sample_documents, folder)]
    if not texts:
        raise DataError("there is no text to learn from", "check the paths of the pool, its text_field and cleaning")
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(learn_in_task)
    with user_errors(), following(folder / METRICS_FILE, folder / NOTICE_FILE, "learning from a sample"):
        figures: dict[str, float] = ray.get(task.remote(embedder, texts, folder))
    return {"texts": len(texts), **figures}


def learn_in_task(embedder: Embedder, texts: list[str], folder: Path) -> dict[str, float]:
    """Trains the embedder in a task of the cluster, with all cores of its machine."""
    hide_unreserved_gpus()
    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))  # Ray limits a task with one CPU to one thread
    if "torch" in sys.modules:  # an earlier task has loaded torch in this process
        use_threads()
    return embedder.learn(texts, folder)
