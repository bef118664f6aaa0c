"""Stage `prepare`: a manifest's parts become token shards, streamed through Ray Data, in the manifest's order.

Readers cut parts into chunks of some megabytes of text; tokenizers turn each chunk into one shard named by its place.
Memory holds a few chunks, whatever the corpus weighs, and any number of workers writes the same shards.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapt.config import CorpusConfig
from adapt.console import log
from adapt.corpus.clean import Tally, clean
from adapt.corpus.docstrings import package_sources, read_docstrings
from adapt.corpus.encode import Encode
from adapt.corpus.entities import Tagged
from adapt.corpus.form import PLAIN, Form
from adapt.corpus.formats import check_field, read_records
from adapt.corpus.manifest import Manifest
from adapt.errors import DataError
from adapt.model.locate import Pretrained
from adapt.runtime import data_settings, user_errors

CHUNK_CHARACTERS = 4_000_000
SOURCES_PER_ITEM = 100
MAX_UNKNOWN_FRACTION = 0.2


def check_readable(manifest: Manifest, corpus: CorpusConfig, entity_field: str | None = None) -> None:
    """Looks at the first record of every file, before anything is started.

    Raises:
        DataError: all files are empty, or one is broken at its beginning or lacks the text field, or the entity field.
    """
    if corpus.source == "files":
        if not any(part.size for part in manifest.parts):
            raise DataError(
                f"the corpus is empty: {len(manifest.parts)} files of 0 bytes, first {manifest.parts[0].path}",
                "check corpus.paths and whatever wrote these files",
            )
        for part in manifest.parts:
            check_field(Path(part.path), corpus.text_field)
            if entity_field is not None:
                check_field(Path(part.path), entity_field, "set objective.entity_field", needs_fields=True)


def prepare(
    manifest: Manifest, corpus: CorpusConfig, pretrained: Pretrained, folder: Path, form: Form = PLAIN
) -> dict[str, Any]:
    """Reads, cleans, tokenizes and writes a corpus into `folder`.

    Args:
        manifest: the parts.
        corpus: how to read and clean them.
        pretrained: has the tokenizer.
        folder: emptied first.
        form: what the objective needs beyond tokens.

    Returns:
        Metrics: documents, held-out documents, tokens, and what was dropped or bad, by reason.

    Raises:
        DataError: a part is broken, too many records are bad, nothing is left, or the tokenizer knows too few words.
    """
    import ray
    from ray.data import TaskPoolStrategy

    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    for leftover in folder.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    # every chunk its own block, so that the chunks of one file are tokenized in parallel
    with user_errors(), data_settings(target_max_block_size=1):
        chunks = (
            ray.data.from_items(_items(manifest, corpus))
            .map_batches(
                Read(corpus, CHUNK_CHARACTERS, form.entity_field),
                batch_size=1,
                batch_format="numpy",
                num_cpus=0.05,
                compute=TaskPoolStrategy(size=cpus),
            )
            .map_batches(
                Encode(pretrained, folder, corpus.heldout_fraction, form),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=0.9,
                compute=TaskPoolStrategy(size=cpus),
            )
            .take_all()
        )
    return _summary(chunks, corpus, manifest)


def _items(manifest: Manifest, corpus: CorpusConfig) -> list[dict[str, Any]]:
    """Units of reading in stream order: a file, or some source files of a package."""
    if corpus.source == "files":
        return [{"item": i, "sources": json.dumps([part.path])} for i, part in enumerate(manifest.parts)]
    batches = []
    for part in manifest.parts:
        sources = iter(package_sources(Path(part.path)))
        while batch := list(islice(sources, SOURCES_PER_ITEM)):
            batches.append(json.dumps([str(path) for path in batch]))
    return [{"item": i, "sources": sources} for i, sources in enumerate(batches)]


@dataclass(frozen=True)
class Read:
    """Turns an item into chunks of clean text."""

    corpus: CorpusConfig
    chunk_characters: int
    entity_field: str | None = None

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """One table of one row for each chunk; the last carries the item's counts."""
        item, tally = int(batch["item"][0]), Tally()
        texts: list[str] = []
        characters = chunk = 0
        for text in self._texts(json.loads(batch["sources"][0]), tally):
            texts.append(text)
            characters += len(text)
            if characters >= self.chunk_characters:
                yield _row(item, chunk, texts, None)
                texts, characters, chunk = [], 0, chunk + 1
        yield _row(item, chunk, texts, tally)

    def _texts(self, sources: list[str], tally: Tally) -> Iterator[str]:
        for source in sources:
            path = Path(source)
            if self.corpus.source == "docstrings":
                records = read_docstrings(path)
            else:
                records = read_records(path, self.corpus.text_field, self.corpus.text_unit, self.entity_field)
            yield from clean(records, self.corpus, tally, source)


def _row(item: int, chunk: int, texts: list[str], tally: Tally | None) -> pa.Table:
    counts = json.dumps(vars(tally)) if tally else ""
    entities = json.dumps([text.entities if isinstance(text, Tagged) else () for text in texts])
    return pa.table(
        {
            "item": [item],
            "chunk": [chunk],
            "texts": pa.array([texts], pa.large_list(pa.large_string())),
            "entities": [entities],
            "tally": [counts],
        }
    )


def _summary(chunks: list[dict[str, Any]], corpus: CorpusConfig, manifest: Manifest) -> dict[str, Any]:
    tally, counts = Tally(), Counter[str]()
    for chunk in sorted(chunks, key=lambda chunk: int(chunk["item"])):
        counts.update(json.loads(chunk["counts"]))
        if chunk["tally"]:
            tally.add(Tally(**json.loads(chunk["tally"])))
    metrics = {
        **{name: counts[name] for name in ("train_documents", "train_tokens", "heldout_documents", "heldout_tokens")},
        "characters": counts["characters"],
        "dropped": tally.dropped,
        "bad": tally.bad,
    }
    _check(tally, counts, corpus, manifest)
    return metrics


def _check(tally: Tally, counts: Counter[str], corpus: CorpusConfig, manifest: Manifest) -> None:
    bad = sum(tally.bad.values())
    cases = "; ".join(f"{count} {reason} (first: {tally.first_bad[reason]})" for reason, count in tally.bad.items())
    if bad > corpus.max_bad_fraction * tally.seen:
        raise DataError(
            f"{bad} of {tally.seen} records are unreadable: {cases}",
            f"mend the files, or raise corpus.max_bad_fraction (now {corpus.max_bad_fraction})",
        )
    if bad:
        log(f"skipped {bad} of {tally.seen} records: {cases}")
    if not tally.kept:
        dropped = ", ".join(f"{count} {reason}" for reason, count in tally.dropped.items()) or "no record at all"
        first = manifest.parts[0].path if manifest.parts else "no part"
        raise DataError(
            f"the corpus is empty after cleaning: {dropped} ({len(manifest.parts)} parts, first {first})",
            "check corpus.paths, corpus.text_field and corpus.min_characters",
        )
    tokens = counts["train_tokens"] + counts["heldout_tokens"]
    if counts["unknown_tokens"] > MAX_UNKNOWN_FRACTION * tokens:
        raise DataError(
            f"{counts['unknown_tokens'] / tokens:.0%} of the tokens are unknown to the tokenizer",
            "use a model whose tokenizer knows this language and script",
        )
