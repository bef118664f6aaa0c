"""Stage `prepare`: turns the files of a manifest into token shards, in the manifest's order, with Ray Data.

Reading tasks cut files into chunks of some megabytes of text. Tokenizing tasks turn each chunk into one shard, named by
its position. Memory holds only a few chunks, however large the corpus is, and the shards do not depend on the number of
workers.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy

from adapt.config import CorpusConfig
from adapt.corpus import corpora, decontamination, encode_chunks, heldout, read_progress, text_profile
from adapt.corpus.entities import Tagged
from adapt.corpus.files.manifest import Manifest, numbered_items
from adapt.corpus.screening import PASS, REJECTS, Fetched, Screen, Tally, check_few_bad, item_texts
from adapt.model.locate import Pretrained
from adapt.ray import node_files, runtime
from adapt.support.errors import DataError
from adapt.support.heartbeat import Steady
from adapt.terminal.console import log

CHUNK_CHARACTERS = 4_000_000
WAITING_BYTES = 256 * 2**20
"""Maximum amount of text that was read but is not tokenized yet [bytes]. The limit keeps memory from growing with the
corpus."""
WORTH_BYTES = 8_000_000
"""Minimum size of a corpus for which one task determines, for all tasks, where texts can be cut into separately
tokenized pieces [bytes]. For a smaller corpus, each task determines this itself when it has seen enough text."""
MAX_UNKNOWN_FRACTION = 0.2
"""Maximum share of unknown tokens in a corpus. With a larger share, the stage fails."""


def screen_of(
    corpus: CorpusConfig, folder: Path, duplicates: Path | None = None, measured: Sequence[Path] = ()
) -> Screen:
    """Returns the checks for the documents of a source, and puts the data that they need into Ray's object store.

    Args:
        corpus: configuration that names the evaluation sets and says whether dropped documents are written.
        folder: folder of the stage.
        duplicates: file of stage `dedup` with the duplicates of this source.
        measured: folders of prepared corpora whose held-out documents must not be trained on. Documents of the source
            with the same normalised text are dropped.

    Raises:
        DataError: an evaluation set or a measured corpus cannot be read, or a set is empty.
    """
    rejects = folder / REJECTS if corpus.write_rejects else None
    known = _stored(heldout.Measured.of(measured)) if measured else None
    if not corpus.decontaminate:
        return Screen(None, duplicates, known, rejects)
    index = decontamination.evaluation_index(corpus)
    return Screen(_stored(index), duplicates, known, rejects, index.counts)


def _stored(check: decontamination.EvaluationIndex | heldout.Measured) -> Fetched:
    """Puts a check into Ray's object store, from which tasks fetch it without copying its arrays."""
    fetch: Callable[[Any], Any] = ray.get
    return partial(fetch, ray.put(check))


def prepare(
    manifest: Manifest,
    corpus: CorpusConfig,
    pretrained: Pretrained,
    folder: Path,
    form: corpora.Form = corpora.PLAIN,
    duplicates: Path | None = None,
    measured: Sequence[Path] = (),
    stall_s: float | None = None,
) -> dict[str, Any]:
    """Reads, cleans and tokenizes a corpus, and writes its shards into `folder`.

    Args:
        manifest: the parts of the corpus: its files, its dataset or its packages.
        corpus: settings for reading and cleaning the corpus.
        pretrained: model whose tokenizer is used.
        folder: folder of the stage. Its content is deleted first.
        form: the data that the objective needs besides tokens, such as the starts of words.
        duplicates: file of stage `dedup` with the documents of this source to leave out.
        measured: folders of prepared corpora whose held-out documents must not be trained on. Documents of this corpus
            with the same normalised text are dropped.
        stall_s: time after which a task without progress is ended [s]; see `adapt.support.heartbeat`.

    Returns:
        Metrics: numbers of training and held-out documents and tokens; numbers of dropped, changed and bad records by
            reason; how the tokenizer splits words (`legibility`); and the number of texts in each file of an
            evaluation set.

    Raises:
        DataError: a part is broken, too many records are bad, no document is left, or too many tokens are unknown.
    """
    for leftover in folder.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    screen = screen_of(corpus, folder, duplicates, measured)
    is_large = sum(part.size for part in manifest.parts) >= WORTH_BYTES
    # the tokenizer is loaded first, because all tokenizing tasks wait for it
    tokenizer = encode_chunks.share_tokenizer(pretrained, bool(form.marks), is_large)
    encode = encode_chunks.Encode(pretrained, folder, corpus.heldout_fraction, form, tokenizer)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    items = numbered_items(manifest, corpus)
    # Ray Data makes one block per chunk, so that the chunks of one file are tokenized in parallel
    with runtime.user_errors(), runtime.data_settings(WAITING_BYTES, target_max_block_size=1):
        encoded = (
            ray.data.from_items(items)
            .map_batches(
                node_files.OnNode(
                    Steady(Read(corpus, CHUNK_CHARACTERS, form.entity_field, screen), "reading", folder, stall_s),
                    fetches=False,
                ),
                batch_size=1,
                batch_format="numpy",
                num_cpus=0.05,
                compute=TaskPoolStrategy(size=cpus),
            )
            .map_batches(
                node_files.OnNode(Steady(encode, "tokenizing", folder, stall_s), fetches=False),
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=0.9,
                compute=TaskPoolStrategy(size=cpus),
            )
        )
        pace = read_progress.Pace.of(items, manifest, corpus)
        chunks = read_progress.watched(encoded.iter_rows(), pace, "prepare", _piece, folder)
    return {**_summary(chunks, corpus, manifest), "evaluation_texts": screen.evaluation_texts}


def _piece(chunk: dict[str, Any]) -> read_progress.Piece:
    counts = json.loads(chunk["counts"])
    documents = counts["train_documents"] + counts["heldout_documents"]
    return read_progress.Piece(int(chunk["item"]), documents, int(chunk["text_bytes"]), bool(chunk["tally"]))


def batch_of(item: dict[str, Any]) -> dict[str, Any]:
    """Converts an item to the form in which Ray Data passes it to `Read`."""
    return {name: np.array([value]) for name, value in item.items()}


@dataclass(frozen=True)
class Read:
    """The Ray Data task that reads an item, cleans it, and cuts it into chunks."""

    corpus: CorpusConfig
    chunk_characters: int
    entity_field: str | None = None
    screen: Screen = PASS

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Yields a table of one row for each chunk. In the last table, column `tally` has the `Tally` of the item."""
        item, tally = int(batch["item"][0]), Tally()
        texts: list[str] = []
        characters = chunk = 0
        for text in self._texts(item, str(batch["sources"][0]), tally):
            texts.append(text)
            characters += len(text)
            if characters >= self.chunk_characters:
                yield chunk_row(item, chunk, texts, None)
                texts, characters, chunk = [], 0, chunk + 1
        yield chunk_row(item, chunk, texts, tally)

    def _texts(self, item: int, sources: str, tally: Tally) -> Iterator[str]:
        with self.screen.of(item) as sieve:
            for _, text in item_texts(item, sources, self.corpus, tally, sieve, self.entity_field):
                yield text


def chunk_row(item: int, chunk: int, texts: list[str], tally: Tally | None) -> pa.Table:
    """Returns a row of the table that `Encode` reads: the texts of a chunk, and the tally if the item ends with it."""
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
    for chunk in sorted(chunks, key=itemgetter("item")):
        counts.update(json.loads(chunk["counts"]))
        if chunk["tally"]:
            tally.add(Tally(**json.loads(chunk["tally"])))
    if counts["refused"]:
        log(
            "prepare: whole texts were tokenized, which is slower, because this tokenizer does not allow splitting"
            " texts into pieces"
        )
    metrics: dict[str, Any] = {
        **{name: counts[name] for name in ("train_documents", "train_tokens", "heldout_documents", "heldout_tokens")},
        "characters": counts["characters"],
        "dropped": tally.dropped,
        "changed": tally.changed,
        "bad": tally.bad,
        "legibility": text_profile.Legibility.of(counts),
    }
    _check(tally, counts, corpus, manifest)
    for fault in metrics["legibility"].faults():
        log(f"prepare: {fault}")
    return metrics


def _check(tally: Tally, counts: Counter[str], corpus: CorpusConfig, manifest: Manifest) -> None:
    check_few_bad(tally, corpus.max_bad_fraction)
    if tally.bad:
        log(f"skipped {sum(tally.bad.values())} of {tally.seen} records: {tally.unreadable}")
    first = manifest.parts[0].path if manifest.parts else "no part"
    if text := corpora.dropped_documents(tally.kept, tally.dropped):
        others = max(0, len({part.path for part in manifest.parts}) - 1)
        other = "" if not others else " and 1 other file" if others == 1 else f" and {others} other files"
        log(f"prepare: {text} (in {first}{other})")
    if (measured := tally.dropped.get(heldout.MEASURED)) and not counts["train_documents"]:
        raise DataError(
            f"{first}: no document is left to train on, because {measured} of its documents are also in a text on which"
            " the loss is measured (evaluation.general_paths, or a task's dev split)",
            "set evaluation.general_paths to other text than corpus.paths, mixture.replay_paths and tapt.pool_paths, or"
            " name the same file in both fields: then the loss is measured on its held-out share, and the rest is used"
            " for training",
        )
    if not tally.kept:
        dropped = (
            ", ".join(f"{count} {reason}" for reason, count in tally.dropped.items()) or "the files contain no record"
        )
        raise DataError(
            f"the corpus is empty after cleaning: {dropped} ({len(manifest.parts)} files or datasets, the first is"
            f" {first})",
            "check corpus.paths, corpus.text_field and corpus.cleaning",
        )
    tokens = counts["train_tokens"] + counts["heldout_tokens"]
    if counts["unknown_tokens"] > MAX_UNKNOWN_FRACTION * tokens:
        raise DataError(
            f"{counts['unknown_tokens'] / tokens:.0%} of the tokens are unknown to the tokenizer",
            "use a model whose tokenizer knows this language and script (model.path), or train a tokenizer and a model"
            " on it (dontstop vocabulary scratch)",
        )
