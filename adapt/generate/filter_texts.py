"""Drops generated texts: by cleaning blocks, near copies, evaluation texts, and texts on which losses are measured.

These are the checks of every corpus (`adapt.corpus.screening`). The tokens of each text are known from its generation,
so the kept and dropped tokens are counted by reason.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy

from adapt.config import CorpusConfig
from adapt.corpus.deduplication import Source, deduplicate
from adapt.corpus.files.formats import MIB, Bad
from adapt.corpus.files.lines import lines as lines_of
from adapt.corpus.files.lines import object_of
from adapt.corpus.files.manifest import Manifest, build_manifest
from adapt.corpus.files.sources import numbered_items, slices_of
from adapt.corpus.heldout import MEASURED, Measured
from adapt.corpus.minhash import DuplicateRule
from adapt.corpus.prepare_corpus import WAITING_BYTES, screen_of
from adapt.corpus.screening import Reject, Screen, Sieve, Tally, clean_numbered
from adapt.generate.generate_blocks import part_files
from adapt.ray.node_files import OnNode
from adapt.ray.runtime import data_settings, telling_stalls, user_errors
from adapt.runner.digest import Digests
from adapt.runner.files import file_aside, storage_errors
from adapt.support.heartbeat import Steady
from adapt.support.schema import duplicates_file

PAIRS_FILE = "pairs.jsonl"
"""File with a query and a relevant text (`query`, `positive`) per line, as retrieval.pairs reads them."""


@dataclass
class FilterCounts:
    """Numbers of generated texts and of their tokens: those that were kept, and dropped ones by reason."""

    texts: int = 0
    tokens: int = 0
    pairs: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_tokens: dict[str, int] = field(default_factory=dict)
    evaluation_texts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of evaluation texts that were searched for, keyed by set and file."""

    @property
    def reasons(self) -> str:
        """Text with the number of dropped texts by reason."""
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
    """Filters the texts of a stage that generated them, and writes the remaining texts.

    Args:
        generated: folder with the generated texts (`adapt.generate.generate_blocks`).
        corpus: settings by which the texts are read, cleaned and compared with each other and with evaluation sets.
        folder: folder of the stage. A folder `dedup` in it gets the lists of near copies.
        texts_file: file for the texts to train on. Pairs are written to PAIRS_FILE next to it.
        measured: folders of prepared corpora on whose held-out documents losses are measured. Texts that equal such a
            document, and texts that were made from one, are dropped.
        before: measured text, as (name, files, settings). Near copies of it are dropped.
        stall_s: time after which a task without progress is ended [s]; see `adapt.support.heartbeat`.
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
    """Yields the filtered texts in batches, in their order, each with counts of dropped texts."""
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    settings = data_settings(WAITING_BYTES, target_max_block_size=1)
    with user_errors(), settings, telling_stalls("filter", folder), storage_errors(folder):
        rows = ray.data.from_items(numbered_items(manifest, corpus)).map_batches(
            OnNode(Steady(FilterPart(corpus, screen), "filtering", folder, stall_s)),
            batch_size=1,
            batch_format="numpy",
            num_cpus=0.9,
            compute=TaskPoolStrategy(size=cpus),
        )
        yield from rows.iter_rows()


def _write(row: Mapping[str, Any], counts: FilterCounts, texts: BinaryIO, pairs: BinaryIO) -> None:
    """Writes a batch of filtered texts, and adds its counts."""
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
"""Number of kept texts in a row that a task returns."""


@dataclass(frozen=True)
class FilterPart:
    """The Ray Data task that filters a file of generated texts."""

    corpus: CorpusConfig
    screen: Screen

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Yields tables of one row: the kept texts as JSON `lines`, and the dropped texts and tokens by reason."""
        item = int(batch["item"][0])
        (slice,) = slices_of(str(batch["sources"][0]))
        # numbered like the texts that were compared with each other, which `read_slice` reads
        with open(slice.path, "rb") as file:
            found = lines_of(file, slice.start, slice.stop, self.corpus.max_record_mib * MIB)
            records: list[Any] = [object_of(line) for line in found if isinstance(line, Bad) or not line.isspace()]
        dropped, tokens, tally = Counter[str](), Counter[str](), Tally()

        def reject(reason: str, source: str, number: int, text: str) -> None:
            dropped[reason] += 1
            tokens[reason] += records[number - 1]["tokens"]

        lines: list[str] = []
        known = self.screen.measured.fetch() if self.screen.measured else None
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
        dropped.update(tally.bad)  # the tokens of lines that cannot be read are not known
        yield _row(lines, dropped, tokens)


def kept_record(record: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Returns the line of a kept text: its cleaned text, or the query and its document, with its number of tokens."""
    if "positive" in record:
        return {"query": text, "positive": record["positive"], "tokens": record["tokens"]}
    details = {name: record[name] for name in ("temperature", "format") if name in record}
    return {"text": text, **details, "tokens": record["tokens"]}


def _rejecting(sieve: Sieve, reject: Reject) -> Sieve:
    """Returns the checks with a further function that receives the dropped texts."""
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
