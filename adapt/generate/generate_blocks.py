"""Makes texts in blocks on the cluster, with Ray Data, and joins the blocks into files.

An actor per GPU, or per core without GPUs, loads the model once and makes one block after another. A finished block is
a file of texts and a file of figures, which is written last, so a killed run loses at most one block per actor. Blocks
depend neither on the actor that makes them nor on the number of actors.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.data import ActorPoolStrategy, TaskPoolStrategy

from adapt.config import ResourcesConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import numbered_items
from adapt.corpus.heldout import in_share, keys_of
from adapt.corpus.prepare_corpus import WAITING_BYTES
from adapt.corpus.read_progress import LEAST, PERIOD_S
from adapt.embed.text_chunks import ReadPool
from adapt.generate.block_files import (
    BLOCKS,
    FIGURES_FILE,
    MadeFigures,
    files_of_block,
    known_figures,
)
from adapt.generate.makers import Maker
from adapt.ray.node_files import OnNode, on_node
from adapt.ray.runtime import data_settings, gpus_per_worker, hide_unreserved_gpus, telling_stalls, user_errors
from adapt.runner.files import file_aside, write_atomically
from adapt.support.errors import BudgetError
from adapt.support.heartbeat import Steady, at_work
from adapt.support.schema import END_FILE
from adapt.support.splitmix import mix
from adapt.terminal.live import display

TEXTS_PER_BLOCK = 64
"""Number of texts, or of documents to rewrite, in a block."""
PART_BYTES = 32_000_000
"""Size at which a file of joined blocks ends [bytes]. It is below the size of a range that one task reads."""
MORE = 1.02
"""Factor on the estimated number of blocks that are still needed, so that another round is seldom needed."""


class MakeBlocks:
    """Actor that makes blocks, one after another.

    Args:
        maker: makes the texts; its model is not loaded yet.
        folder: folder of the stage.
        stall_s: time after which the actor is ended if it makes no progress [s]; see `adapt.support.heartbeat`.
    """

    def __init__(self, maker: Maker, folder: Path, stall_s: float | None) -> None:
        hide_unreserved_gpus()
        os.environ["OMP_NUM_THREADS"] = "1"  # one thread per actor, because there is an actor per core
        self._maker, self._folder, self._stall_s = maker, folder, stall_s
        self._is_loaded = False

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Makes a block, unless an earlier run has made it, and returns its name and figures.

        Raises:
            BudgetError: the budget is spent.
        """
        (block,) = table.to_pylist()
        with on_node(self._folder, fetches=False), at_work("generating", self._folder, self._stall_s):
            figures = known_figures(self._folder, block["block"]) or self._make(block)
        return {name: [value] for name, value in {"block": block["block"], **asdict(figures)}.items()}

    def _make(self, block: Mapping[str, Any]) -> MadeFigures:
        if (self._folder / END_FILE).exists():
            raise BudgetError("the generation stopped before a block; the finished blocks are kept")
        if not self._is_loaded:  # loads no model if all blocks are made already
            torch.set_num_threads(1)
            self._maker.load()
            self._is_loaded = True
        began = monotonic()
        made = self._maker.make(block)
        lines = (
            json.dumps({"text": each.text, "tokens": each.tokens, **each.details}, ensure_ascii=False) for each in made
        )
        text_file, figures_file = files_of_block(self._folder, block["block"])
        write_atomically(text_file, "".join(f"{line}\n" for line in lines))
        figures = MadeFigures(
            len(made),
            sum(each.tokens for each in made),
            sum(each.is_cut for each in made),
            sum(len(each.text.encode("utf-8", "replace")) for each in made),
            monotonic() - began,
        )
        write_atomically(figures_file, json.dumps(asdict(figures)))
        return figures


def make_texts(maker: Maker, tokens: int, longest: int, folder: Path, resources: ResourcesConfig) -> MadeFigures:
    """Makes blocks of texts until they contain the required number of tokens, and joins them.

    The joined blocks are the shortest beginning of the sequence of blocks that has enough tokens, so they do not depend
    on the number of actors.

    Args:
        maker: makes the texts of a block from their numbers.
        tokens: number of tokens to make.
        longest: largest number of tokens of a text.
        folder: folder of the stage, with the blocks of an interrupted run.
        resources: determines the number of GPUs per actor.

    Raises:
        ModelError: the model cannot be used.
    """
    if done := _joined(folder):
        return done
    made: list[MadeFigures] = []
    while (total := sum(each.tokens for each in made)) < tokens:
        per_block = total / len(made) if total else TEXTS_PER_BLOCK * longest
        wanted = len(made) + max(1, ceil(MORE * (tokens - total) / per_block))
        blocks = [
            {"block": f"{number:08d}", "first": number * TEXTS_PER_BLOCK, "count": TEXTS_PER_BLOCK}
            for number in range(len(made), wanted)
        ]
        with data_settings(WAITING_BYTES, target_max_block_size=1):
            rows = _run(
                ray.data.from_items(blocks, override_num_blocks=len(blocks)), maker, len(blocks), folder, resources
            )
        found = {row["block"]: row for row in rows}
        made += [_figures_of(found[block["block"]]) for block in blocks]
    names, total = [], 0
    for number, each in enumerate(made):
        if total < tokens:
            names.append(f"{number:08d}")
            total += each.tokens
    return join_blocks(folder, names)


def rewrite_texts(
    maker: Maker, manifest: Manifest, read: ReadPool, share: float, folder: Path, resources: ResourcesConfig
) -> MadeFigures:
    """Rewrites the documents of a corpus in blocks, and joins the blocks.

    Args:
        maker: makes the texts of a block from documents.
        manifest: files of the corpus.
        read: reads a part of the corpus, without its held-out documents.
        share: share of the documents that are rewritten.
        folder: folder of the stage, with the blocks of an interrupted run.
        resources: determines the number of GPUs per actor.

    Raises:
        DataError: too many records cannot be read.
        ModelError: the generator cannot be used.
    """
    if done := _joined(folder):
        return done
    items = numbered_items(manifest, read.corpus)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    with data_settings(WAITING_BYTES, target_max_block_size=1):
        documents = ray.data.from_items(items).map_batches(
            OnNode(Steady(ReadDocuments(read, share), "reading", folder, resources.stall_s), fetches=False),
            batch_size=1,
            batch_format="numpy",
            num_cpus=0.05,
            compute=TaskPoolStrategy(size=cpus),
        )
        rows = _run(documents, maker, None, folder, resources)
    return join_blocks(folder, sorted(row["block"] for row in rows))


@dataclass(frozen=True)
class ReadDocuments:
    """The Ray Data task that reads a part of a corpus, and yields its documents in blocks."""

    read: ReadPool
    share: float

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Yields tables of one row with the name of the block, and the ids and texts of its documents."""
        number = 0
        for table in self.read(batch):
            (row,) = table.to_pylist()
            keys = mix(keys_of(row["texts"]))  # hashed again: the keys themselves decide what is held out
            taken = np.flatnonzero(in_share(keys, self.share))
            for start in range(0, len(taken), TEXTS_PER_BLOCK):
                places = taken[start : start + TEXTS_PER_BLOCK].tolist()
                ids, texts = [row["ids"][place] for place in places], [row["texts"][place] for place in places]
                yield pa.table(
                    {
                        "block": [f"{row['item']:06d}-{number:08d}"],
                        "ids": pa.array([ids], pa.large_list(pa.int64())),
                        "texts": pa.array([texts], pa.large_list(pa.large_string())),
                    }
                )
                number += 1


def _run(
    blocks: Any, maker: Maker, count: int | None, folder: Path, resources: ResourcesConfig
) -> list[dict[str, Any]]:
    """Makes blocks in actors, and returns the name and figures of each.

    Args:
        blocks: dataset with a row per block.
        maker: makes the texts of a block.
        count: number of blocks; None if it is not known.
        folder: folder of the stage.
        resources: determines the number of GPUs per actor.

    Raises:
        BudgetError: the budget is spent.
    """
    (folder / END_FILE).unlink(missing_ok=True)  # from a run that reached a smaller budget
    gpus, totals = gpus_per_worker(resources), ray.cluster_resources()
    cpus = max(1, int(totals.get("CPU", 1)))
    actors = max(1, int(totals.get("GPU", 0) / gpus)) if gpus else cpus
    with user_errors(field="generate.micro_batch"):
        made = blocks.map_batches(
            MakeBlocks,
            fn_constructor_args=(maker, folder, resources.stall_s),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0.9,
            num_gpus=gpus or None,
            compute=ActorPoolStrategy(min_size=1, max_size=min(actors, count or actors)),
        )
        return _watched(made.iter_rows(), count, folder)


def _watched(rows: Iterator[dict[str, Any]], count: int | None, folder: Path) -> list[dict[str, Any]]:
    """Collects the figures of finished blocks, and shows the progress: texts, share of the blocks, tokens per second.

    The speed counts from the first block on, because the actors load the model before.
    """
    found: list[dict[str, Any]] = []
    texts = tokens = 0
    with telling_stalls("generate", folder), display("generate: loading the model", LEAST, PERIOD_S) as shown:
        began = monotonic()
        for row in rows:
            began = began if found else monotonic()
            found.append(row)
            texts += int(row["texts"])
            parts = {"texts": f"generate: {texts:,} texts"}
            if count:
                parts["share"] = f"{100 * len(found) // count}%"
            if len(found) > 1:
                tokens += int(row["tokens"])
                parts["speed"] = f"{tokens / max(monotonic() - began, 1e-9):,.0f} tokens/s"
            shown.update(parts, len(found), count or 0)
    return found


def _figures_of(row: Mapping[str, Any]) -> MadeFigures:
    return MadeFigures(**{each.name: row[each.name] for each in fields(MadeFigures)})


def part_files(folder: Path) -> list[Path]:
    """Returns the files of joined blocks, in order."""
    return sorted(folder.glob("part-*.jsonl"))


def join_blocks(folder: Path, names: Sequence[str]) -> MadeFigures:
    """Joins blocks into files of at most about PART_BYTES, writes the figures of all blocks, and removes the blocks."""
    total, size = MadeFigures(), 0
    parts: list[list[Path]] = [[]]
    for name in names:
        file, figures = files_of_block(folder, name)[0], known_figures(folder, name)
        assert figures
        total, size = total.plus(figures), size + file.stat().st_size
        parts[-1].append(file)
        if size >= PART_BYTES:
            parts.append([])
            size = 0
    for number, files in enumerate(filter(None, parts)):
        with file_aside(folder / f"part-{number:05d}.jsonl") as aside, aside.open("wb") as joined:
            for file in files:
                joined.write(file.read_bytes())
    write_atomically(folder / FIGURES_FILE, json.dumps(asdict(total)))
    shutil.rmtree(folder / BLOCKS, ignore_errors=True)
    return total


def _joined(folder: Path) -> MadeFigures | None:
    """Returns the figures of all blocks if an earlier run has joined them; None otherwise."""
    if not (folder / FIGURES_FILE).is_file():
        return None
    shutil.rmtree(folder / BLOCKS, ignore_errors=True)
    return MadeFigures(**json.loads((folder / FIGURES_FILE).read_text()))
