"""Streaming: a corpus read, cleaned and tokenized while training goes on, in one pass, without token shards on disk.

Items of reading (file ranges) come in an order drawn from the seed; their training text, tokenized, is one stream, cut
into shuffled batches by `adapt.corpus.streaming.window`. All of it is a function of the corpus and the seed. What a
resumed run has to know is where items begin in the stream: one number an item, kept in a file as the items are read for
the first time. So it begins with the item of its first window, and nothing before that is read again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adapt.config import CorpusConfig
from adapt.corpus.batches.order import permute
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.screening.screen import screen_of
from adapt.corpus.screening.tally import Tally, check_few_bad
from adapt.corpus.shards.encode import Encode, share_tokenizer
from adapt.corpus.shards.form import Form
from adapt.corpus.shards.prepare import Read, batch_of, numbered_items
from adapt.corpus.streaming.index import ItemIndex
from adapt.corpus.streaming.window import Columns, Cut, dropped
from adapt.model.locate import Pretrained
from adapt.ray.runtime import data_settings, user_errors
from adapt.schema import STARTS, TOKENS

CHUNK_CHARACTERS = 1_000_000
"""Size of a chunk. It is smaller than when a corpus is prepared: training waits for the first chunk."""
READ_AHEAD_BYTES = 256 * 2**20
"""Tokens and texts that may wait in the cluster's object store, after which reading waits for training."""
INDEX_FILE = "items.txt"
"""In the training run's folder: how many tokens each item had."""
ENOUGH_RECORDS = 1000
"""After this many records, the share of unreadable ones is held to its limit."""


@dataclass(frozen=True)
class Online:
    """A corpus to be streamed.

    Args:
        items: as `Read` takes them, in the manifest's order.
        read: reads an item.
        encode: tokenizes what was read.
        cut: makes batches of it.
        index: file that keeps how many tokens each item had.
    """

    items: tuple[dict[str, Any], ...]
    read: Read
    encode: Encode
    cut: Cut
    index: Path

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        corpus: CorpusConfig,
        pretrained: Pretrained,
        form: Form,
        cut: Cut,
        folder: Path,
        duplicates: Path | None = None,
        measured: Sequence[Path] = (),
    ) -> "Online":
        """The stream of the parts of a manifest.

        Args:
            manifest: the parts.
            corpus: how to read and clean them.
            pretrained: has the tokenizer.
            form: what the objective needs beyond tokens.
            cut: makes batches.
            folder: of the stage.
            duplicates: what stage `dedup` has found, to be left out.
            measured: prepared corpora whose measured text is left out.
        """
        items = tuple(numbered_items(manifest, corpus))
        read = Read(corpus, CHUNK_CHARACTERS, form.entity_field, screen_of(corpus, folder, duplicates, measured))
        encode = Encode(pretrained, folder, corpus.heldout_fraction, form)
        return cls(items, read, encode, cut, folder / INDEX_FILE)

    @property
    def order(self) -> list[int]:
        """The items' numbers in the order of reading."""
        return permute(np.arange(len(self.items)), len(self.items), self.cut.seed, 0).tolist()  # type: ignore[no-any-return]

    def batches(self, step: int, parallel: bool = True) -> Iterator[Columns]:
        """The global batches from a step on; fewer than asked for where the corpus ends.

        Args:
            step: the first one.
            parallel: read by Ray Data tasks, ahead of training; else in this process.

        Raises:
            DataError: a file is broken or has changed since its item was first read, or too many records are bad.
        """
        index = ItemIndex.open(self.index)
        begin = self.cut.start_of(step)
        position = index.item_at(begin, len(self.items))
        items = [self.items[number] for number in self.order[position:]]
        chunks = self._chunks(items) if parallel else self._here(items)
        pieces = self._pieces(chunks, position, index)
        return self.cut.batches(dropped(pieces, begin - index.begin(position)), step)

    def _here(self, items: list[dict[str, Any]]) -> Iterator[pa.Table]:
        tokenize = Tokenize(self.encode)
        for item in items:
            for chunk in self.read(batch_of(item)):
                yield tokenize(chunk)

    def _chunks(self, items: list[dict[str, Any]]) -> Iterator[pa.Table]:
        import ray.data
        from ray.data import TaskPoolStrategy

        if not items:
            return
        tasks = max(1, int(ray.cluster_resources().get("CPU", 1)) // 4)  # on no CPU: training may hold them all
        encode = replace(
            self.encode, shared=share_tokenizer(self.encode.pretrained, bool(self.encode.form.marks), False)
        )
        with user_errors(), data_settings(READ_AHEAD_BYTES, target_max_block_size=1):
            options: dict[str, Any] = {"num_cpus": 0, "compute": TaskPoolStrategy(size=tasks)}
            dataset = (
                ray.data.from_items(items, override_num_blocks=len(items))
                .map_batches(self.read, batch_size=1, batch_format="numpy", **options)
                .map_batches(Tokenize(encode), batch_size=1, batch_format="pyarrow", **options)
            )
            yield from dataset.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=2)

    def _pieces(self, chunks: Iterable[pa.Table], position: int, index: ItemIndex) -> Iterator[Columns]:
        """The stream from the beginning of an item on. Each item's length is kept once it is over."""
        tally, tokens = Tally(), 0
        for chunk in chunks:
            columns = columns_of(chunk)
            tokens += len(columns[TOKENS])
            if text := chunk.column("tally")[0].as_py():
                tally.add(Tally(**json.loads(text)))
                if tally.seen >= ENOUGH_RECORDS:
                    check_few_bad(tally, self.read.corpus.max_bad_fraction, "records read so far")
                index.add(position, tokens)
                position, tokens = position + 1, 0
            if len(columns[TOKENS]):
                yield columns


@dataclass(frozen=True)
class Tokenize:
    """The Ray Data task: a chunk of texts in, the tokens of its training documents out."""

    encode: Encode

    def __call__(self, table: pa.Table) -> pa.Table:
        """One row: tokens, starts and marks of all documents together."""
        row = table.to_pylist()[0]
        documents, keys, _ = self.encode.tokens(row)
        documents = documents.where(~self.encode.heldout(keys))
        starts = np.zeros(documents.bounds[-1], bool)
        starts[documents.bounds[:-1][np.diff(documents.bounds) > 0]] = True
        flat = {name: pa.array(values) for name, values in {**documents.columns, STARTS: starts}.items()}
        lists = {name: pa.LargeListArray.from_arrays([0, len(values)], values) for name, values in flat.items()}
        return pa.table({**lists, "tally": [row["tally"]]})


def columns_of(chunk: pa.Table) -> Columns:
    """The arrays of a tokenized chunk."""
    names = [name for name in chunk.column_names if name != "tally"]
    return {name: chunk.column(name)[0].values.to_numpy(zero_copy_only=False) for name in names}
