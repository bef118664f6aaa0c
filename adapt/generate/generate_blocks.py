"""Makes texts in blocks on the cluster, with Ray Data, joins the blocks into files, and drops unsuitable texts.

There is one actor per GPU, or per CPU core if there is no GPU. An actor loads the model once and makes one block after
another. A finished block consists of a file of texts and a file of counts. The counts are written last, so a killed run
loses at most one block per actor. Blocks depend neither on the actor that makes them nor on the number of actors.

A text is dropped if a cleaning step rejects it, or if it copies another generated text, an evaluation text, or a text
on which losses are measured. Every corpus passes the same checks (`adapt.corpus.screening`). The number of tokens of
each text is known from its generation, so both texts and tokens are counted: those that are kept, and those that are
dropped for each reason.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.data import ActorPoolStrategy, TaskPoolStrategy

from adapt.config import CorpusConfig, ResourcesConfig
from adapt.corpus.deduplication import Source, deduplicate
from adapt.corpus.files.formats import MIB, Bad
from adapt.corpus.files.lines import lines as lines_of
from adapt.corpus.files.lines import object_of
from adapt.corpus.files.manifest import Manifest, build_manifest, numbered_items, slices_of
from adapt.corpus.heldout import MEASURED, Measured, in_share, keys_of
from adapt.corpus.minhash import DuplicateRule
from adapt.corpus.prepare_corpus import WAITING_BYTES, screen_of
from adapt.corpus.read_progress import LEAST, PERIOD_S
from adapt.corpus.screening import Reject, Screen, Sieve, Tally, clean_numbered
from adapt.embed.text_chunks import ReadPool
from adapt.generate.block_files import BLOCKS, FIGURES_FILE, MadeFigures, files_of_block, known_figures
from adapt.generate.makers import DROPPED, Maker
from adapt.ray import runtime
from adapt.ray.node_files import OnNode, on_node
from adapt.runner.digest import Digests
from adapt.runner.files import file_aside, storage_errors, write_atomically
from adapt.support.errors import BudgetError
from adapt.support.heartbeat import Steady, at_work
from adapt.support.schema import END_FILE, duplicates_file
from adapt.support.splitmix import mix
from adapt.terminal.live import display

TEXTS_PER_BLOCK = 64
"""Number of texts, or of documents to rewrite, in a block."""
PART_BYTES = 32_000_000
"""Approximate maximum size of a file of joined blocks [bytes]. It is below the size of a file range that one task
reads."""
MORE = 1.02
"""Factor by which the estimated number of missing blocks is raised, so that a second round of blocks is seldom
needed."""
MEASURED_S = 5.0
"""Least time over which a speed is measured [s]."""


class MakeBlocks:
    """Actor that makes blocks, one after another.

    `stall_s` is described at `adapt.support.heartbeat`.
    """

    def __init__(self, maker: Maker, folder: Path, stall_s: float | None) -> None:
        runtime.hide_unreserved_gpus()
        os.environ["OMP_NUM_THREADS"] = "1"  # an actor uses one thread, because there is an actor per core
        self._maker, self._folder, self._stall_s = maker, folder, stall_s
        self._is_loaded = False

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Makes a block, unless an earlier run made it, and returns the block's name and counts.

        Raises:
            BudgetError: the budget is spent.
        """
        (block,) = table.to_pylist()
        with on_node(self._folder, fetches=False), at_work("generating", self._folder, self._stall_s):
            figures = known_figures(self._folder, block["block"]) or self._make(block)
        return {name: [value] for name, value in {"block": block["block"], **asdict(figures)}.items()}

    def _make(self, block: Mapping[str, Any]) -> MadeFigures:
        if (self._folder / END_FILE).exists():
            raise BudgetError("text generation stopped before its next block of texts; the finished blocks are kept")
        if not self._is_loaded:  # the model is loaded only when needed, because all blocks may already exist
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

    Blocks are numbered. The first blocks that together have enough tokens are joined, so the result does not depend on
    the number of actors.

    `longest` is the maximum number of tokens of a text. `folder` may have the blocks of an interrupted run.

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
        with runtime.data_settings(WAITING_BYTES, target_max_block_size=1):
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

    `read` reads a part of the corpus, without its held-out documents. The share `share` of these documents is
    rewritten. `folder` may have the blocks of an interrupted run.

    Raises:
        DataError: too many records cannot be read.
        ModelError: the generator cannot be used.
    """
    if done := _joined(folder):
        return done
    items = numbered_items(manifest, read.corpus)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    with runtime.data_settings(WAITING_BYTES, target_max_block_size=1):
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
        """Yields one table per block, with one row: the name of the block, and the ids and texts of its documents."""
        number = 0
        for table in self.read(batch):
            (row,) = table.to_pylist()
            # hashes the keys once more: the keys themselves decide which documents are held out, and the choice of
            # documents to rewrite must not depend on the held-out split
            keys = mix(keys_of(row["texts"]))
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
    """Makes blocks in actors, and returns the name and the counts of each block.

    `count` is the number of blocks; None if it is not known.
    """
    (folder / END_FILE).unlink(missing_ok=True)  # removes the mark of an earlier run whose smaller budget was spent
    gpus, totals = runtime.gpus_per_worker(resources), ray.cluster_resources()
    cpus = max(1, int(totals.get("CPU", 1)))
    actors = max(1, int(totals.get("GPU", 0) / gpus)) if gpus else cpus
    with runtime.batch_errors(maker.batch_field):
        made = blocks.map_batches(
            MakeBlocks,
            fn_constructor_args=(maker, folder, resources.stall_s),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0.9,
            num_gpus=gpus or None,
            compute=ActorPoolStrategy(min_size=1, max_size=min(actors, count or actors)),
        )
        return counts_of_blocks(made.iter_rows(), count, folder)


def counts_of_blocks(rows: Iterator[dict[str, Any]], count: int | None, folder: Path) -> list[dict[str, Any]]:
    """Collects the counts of finished blocks, and shows the progress: texts, share of blocks, and tokens per second.

    The speed is measured from the end of the first block on, because the actors load the model before that block. It is
    shown after some seconds, because the blocks of several actors end together.
    """
    found: list[dict[str, Any]] = []
    texts = tokens = 0
    with runtime.telling_stalls("generate", folder), display("generate: loading the model", LEAST, PERIOD_S) as shown:
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
                if (passed := monotonic() - began) >= MEASURED_S:
                    parts["speed"] = f"{tokens / passed:,.0f} tokens/s"
            shown.update(parts, len(found), count or 0)
    return found


def _figures_of(row: Mapping[str, Any]) -> MadeFigures:
    return MadeFigures(**{each.name: row[each.name] for each in fields(MadeFigures)})


def part_files(folder: Path) -> list[Path]:
    """Returns the files of joined blocks, in order."""
    return sorted(folder.glob("part-*.jsonl"))


def join_blocks(folder: Path, names: Sequence[str]) -> MadeFigures:
    """Joins blocks into files of at most about PART_BYTES, writes the sums of their counts, and removes the blocks."""
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
    """Returns the sums of the counts of all blocks if an earlier run joined the blocks; None otherwise."""
    if not (folder / FIGURES_FILE).is_file():
        return None
    shutil.rmtree(folder / BLOCKS, ignore_errors=True)
    return MadeFigures(**json.loads((folder / FIGURES_FILE).read_text()))


PAIRS_FILE = "pairs.jsonl"
"""Name of the file of pairs, in the format of `retrieval.pairs`: each line has a `query` and a relevant text
(`positive`)."""


@dataclass
class FilterCounts:
    """Numbers of texts and tokens that were kept, and that were dropped for each reason."""

    texts: int = 0
    tokens: int = 0
    pairs: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_tokens: dict[str, int] = field(default_factory=dict)
    evaluation_texts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of evaluation texts that the generated texts were compared with, keyed by set and file."""

    @property
    def reasons(self) -> str:
        """Text that lists the number of dropped texts per reason."""
        return ", ".join(f"{reason} {number:,}" for reason, number in self.dropped.items())


def filter_texts(
    generated: Path,
    corpus: CorpusConfig,
    folder: Path,
    texts_file: Path,
    measured: Sequence[Path] = (),
    before: Sequence[Source] = (),
    stall_s: float | None = None,
) -> FilterCounts:
    """Filters the texts that a stage generated, and writes the remaining texts.

    Drops texts that equal a held-out document of the prepared corpora in `measured`, or were rewritten from one,
    and near copies of the corpora `before` (name, files, settings). Writes pairs to PAIRS_FILE next to
    `texts_file`, and lists of near copies to the folder `dedup` in `folder`.
    """
    manifest = build_manifest(CorpusConfig(paths=[str(file) for file in part_files(generated)]), Digests())
    copies = folder / "dedup"
    copies.mkdir(exist_ok=True)
    deduplicate([("generated", manifest, corpus)], DuplicateRule.of(corpus), copies, before=before, stall_s=stall_s)
    screen = screen_of(corpus, folder, copies / duplicates_file(0), measured)
    counts = FilterCounts(evaluation_texts={name: dict(of) for name, of in screen.evaluation_texts.items()})
    pairs_file = texts_file.with_name(PAIRS_FILE)
    with (
        file_aside(texts_file) as text_aside,
        file_aside(pairs_file) as pair_aside,
        text_aside.open("wb") as kept,
        pair_aside.open("wb") as pairs,
    ):
        for row in _filtered(manifest, corpus, screen, folder, stall_s):
            _write(row, counts, kept, pairs)
    if not counts.pairs:
        pairs_file.unlink()
    return counts


def _filtered(
    manifest: Manifest, corpus: CorpusConfig, screen: Screen, folder: Path, stall_s: float | None
) -> Iterator[dict[str, Any]]:
    """Yields batches of filtered texts in their original order. Each batch comes with its counts of dropped texts."""
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    settings = runtime.data_settings(WAITING_BYTES, target_max_block_size=1)
    with runtime.user_errors(), settings, runtime.telling_stalls("filter", folder), storage_errors(folder):
        rows = ray.data.from_items(numbered_items(manifest, corpus)).map_batches(
            OnNode(Steady(FilterPart(corpus, screen), "filtering", folder, stall_s)),
            batch_size=1,
            batch_format="numpy",
            num_cpus=0.9,
            compute=TaskPoolStrategy(size=cpus),
        )
        yield from rows.iter_rows()


def _write(row: Mapping[str, Any], counts: FilterCounts, texts: BinaryIO, pairs: BinaryIO) -> None:
    """Writes a batch of filtered texts, and adds the batch's numbers of kept and dropped texts to `counts`."""
    for line in row["lines"]:
        record = json.loads(line)
        counts.tokens += record.pop("tokens")
        if "query" in record:
            counts.pairs += 1
            pairs.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        else:
            texts.write(json.dumps({"id": counts.texts, **record}, ensure_ascii=False).encode() + b"\n")
            counts.texts += 1
    for mine, theirs in ((counts.dropped, row["dropped"]), (counts.dropped_tokens, row["dropped_tokens"])):
        for reason, number in json.loads(theirs).items():
            mine[reason] = mine.get(reason, 0) + number


LINES_AT_ONCE = 4096
"""Maximum number of texts per row of the tables that a task returns."""


@dataclass(frozen=True)
class FilterPart:
    """The Ray Data task that filters a file of generated texts."""

    corpus: CorpusConfig
    screen: Screen

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Yields tables of one row: kept texts as JSON `lines`, and numbers of dropped texts and tokens by reason."""
        item = int(batch["item"][0])
        (slice,) = slices_of(str(batch["sources"][0]))
        # numbers the texts as `read_slice` does, because the search for near copies read them that way
        with open(slice.path, "rb") as file:
            found = lines_of(file, slice.start, slice.stop, self.corpus.max_record_mib * MIB)
            records: list[Any] = [object_of(line) for line in found if isinstance(line, Bad) or not line.isspace()]
        dropped, tokens, tally = Counter[str](), Counter[str](), Tally()

        def reject(reason: str, source: str, number: int, text: str) -> None:
            reason = records[number - 1].get(DROPPED, reason)
            dropped[reason] += 1
            tokens[reason] += records[number - 1]["tokens"]

        lines: list[str] = []
        known = self.screen.measured() if self.screen.measured else None
        with self.screen.of(item) as sieve:
            texts = (record if isinstance(record, Bad) else record["text"] for record in records)
            for number, text in clean_numbered(texts, self.corpus, tally, slice.path, _rejecting(sieve, reject)):
                record = records[number - 1]
                if isinstance(known, Measured) and "source" in record and known.has(int(record["source"])):
                    reject(MEASURED, slice.path, number, text)
                    continue
                lines.append(json.dumps(kept_record(record, text), ensure_ascii=False))
                if len(lines) == LINES_AT_ONCE:
                    yield _row(lines, {}, {})
                    lines = []
        dropped.update(tally.bad)  # counts unreadable lines, but not their tokens, whose number is not known
        yield _row(lines, dropped, tokens)


def kept_record(record: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Returns the JSON object of a text: the cleaned text, or a query with its document, and the number of tokens."""
    if "positive" in record:
        return {"query": text, "positive": record["positive"], "tokens": record["tokens"]}
    details = {name: record[name] for name in ("temperature", "format") if name in record}
    return {"text": text, **details, "tokens": record["tokens"]}


def _rejecting(sieve: Sieve, reject: Reject) -> Sieve:
    """Returns a copy of the checks in `sieve` that also calls `reject` for each dropped text."""
    written = sieve.reject

    def both(reason: str, source: str, number: int, text: str) -> None:
        reject(reason, source, number, text)
        if written:
            written(reason, source, number, text)

    return replace(sieve, reject=both)


def _row(lines: Sequence[str], dropped: Mapping[str, int], tokens: Mapping[str, int]) -> pa.Table:
    return pa.table(
        {
            "lines": pa.array([list(lines)], pa.large_list(pa.large_string())),
            "dropped": [json.dumps(dropped)],
            "dropped_tokens": [json.dumps(tokens)],
        }
    )
