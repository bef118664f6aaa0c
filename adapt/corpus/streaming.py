"""Reads, cleans and tokenizes a corpus during training (streaming), in one pass, without token shards on disk.

Items (file ranges) are read in a random order that depends on the seed. Their tokenized training texts form one stream,
which `adapt.corpus.token_shards` cuts into shuffled batches. The stream depends only on the corpus and the seed. A
resumed run needs to know where each item begins in the stream. So the number of tokens of an item is written to a file
when the item is read for the first time. A resumed run starts with the item that contains the beginning of the run's
first window, and does not read earlier items again. One actor (`Server`) reads the corpus for all ranks, and each rank
requests its share of every batch.

Only a held-out sample is tokenized beforehand (`sample_heldout`). The sample consists of documents in the held-out
share, which is never trained on. Items are read in a fixed random order until the sample is large enough. Each item
contributes its first held-out documents, up to an equal share of the sample. If earlier items had fewer documents than
their share, later items contribute more.
"""

import bisect
import json
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray.data
from ray.data import TaskPoolStrategy

from adapt.config import CorpusConfig
from adapt.corpus.corpora import Form
from adapt.corpus.encode_chunks import Encode, share_tokenizer
from adapt.corpus.files.manifest import Manifest, numbered_items
from adapt.corpus.heldout import in_share, keys_of
from adapt.corpus.prepare_corpus import Read, batch_of, screen_of
from adapt.corpus.read_progress import reading, text_bytes
from adapt.corpus.sample_order import permute
from adapt.corpus.screening import Tally, check_few_bad
from adapt.corpus.text_profile import Legibility
from adapt.corpus.token_shards import Columns, Cut, dropped, take_places
from adapt.model.locate import Pretrained
from adapt.ray.node_files import OnNode, pinned_home
from adapt.ray.runtime import data_settings, user_errors
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB, STARTS, TOKENS
from adapt.terminal.console import log


@dataclass
class ItemIndex:
    """The number of tokens of each item, in the order in which items were read, and the file with these numbers.

    The numbers depend only on the corpus and the seed, not on how far the run has progressed. So a run may resume from
    a checkpoint that is older than the index. If the index is older than the checkpoint, the run reads more items
    again.
    """

    file: Path
    tokens: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, file: Path) -> "ItemIndex":
        """Reads an index file up to its first invalid line.

        The invalid line and all lines after it are removed from the file. Otherwise, a line that is incomplete because
        the process died while writing it would be joined with the next line.
        """
        if not file.exists():
            return cls(file)
        text = file.read_text(errors="replace")
        tokens = list(_tokens(text))
        if text != (whole := "".join(map(_line, range(len(tokens)), tokens))):
            write_atomically(file, whole)
        return cls(file, tokens)

    def begin(self, position: int) -> int:
        """Returns the offset in the stream at which the item at `position` of the reading order begins [tokens]."""
        return sum(self.tokens[:position])

    def item_at(self, token: int, items: int) -> int:
        """Returns the position of the item that contains a token in the reading order, or of the first unread item.

        Args:
            token: position of the token in the stream [tokens].
            items: number of all items.
        """
        return min(bisect.bisect_right(list(accumulate(self.tokens)), token), items)

    def add(self, position: int, tokens: int) -> None:
        """Records the number of tokens of an item (a file range) that was read completely.

        Raises:
            DataError: the number of tokens differs from the one that was recorded when the item was first read.
        """
        if position < len(self.tokens):
            if self.tokens[position] != tokens:
                raise DataError(
                    f"the corpus has changed since this job first read it: a part of a file that had"
                    f" {self.tokens[position]} tokens now has {tokens}",
                    "restore the original files, or start the job again from its beginning",
                )
            return
        self.tokens.append(tokens)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(_line(position, tokens))


def _line(position: int, tokens: int) -> str:
    """Returns the line of the index file that describes an item.

    The line has a checksum, because a changed digit would shift all rows of a resumed run.
    """
    return f"{position} {tokens} {zlib.crc32(f'{position} {tokens}'.encode()):08x}\n"


def _tokens(text: str) -> Iterator[int]:
    """Yields the number of tokens of each item in the text of an index file, up to the first invalid line."""
    for position, line in enumerate(text.splitlines(keepends=True)):
        match = re.fullmatch(r"(\d+) (\d+)( [0-9a-f]{8})?\n", line, re.ASCII)
        if not match or int(match[1]) != position:
            return
        if match[3] and line != _line(position, int(match[2])):  # lines of earlier versions have no checksum
            return
        yield int(match[2])


CHUNK_CHARACTERS = 1_000_000
"""Size of a chunk [characters]. It is smaller than in stage `prepare`, because training waits for the first chunk."""
READ_AHEAD_BYTES = 256 * 2**20
"""Maximum size of the tokens and texts in the cluster's object store [bytes]. When this size is reached, reading waits
for training."""
INDEX_FILE = "items.txt"
"""Name of the file, in the training run's folder, with the number of tokens of each item."""
ENOUGH_RECORDS = 1000
"""Number of records after which the share of unreadable records is checked while a corpus is read. The share is checked
again at the end of the corpus."""


@dataclass(frozen=True)
class Online:
    """A corpus that is read, tokenized and cut into batches during training.

    Args:
        items: items of the corpus in the form that `Read` takes, in the manifest's order.
        read: task that reads an item.
        encode: task that tokenizes the chunks of an item.
        cut: settings by which the tokens are cut into batches.
        index: file with the number of tokens of each item.
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
        """Returns the stream over the files of a manifest.

        Args:
            manifest: the files of the corpus.
            corpus: settings for reading and cleaning the files.
            pretrained: model whose tokenizer is used.
            form: the data that the objective needs besides tokens, such as the starts of words.
            cut: settings by which the tokens are cut into batches.
            folder: folder of the stage.
            duplicates: file of stage `dedup` with the documents to leave out.
            measured: folders of prepared corpora whose held-out documents must not be trained on.
        """
        items = tuple(numbered_items(manifest, corpus))
        read = Read(corpus, CHUNK_CHARACTERS, form.entity_field, screen_of(corpus, folder, duplicates, measured))
        encode = Encode(pretrained, folder, corpus.heldout_fraction, form)
        return cls(items, read, encode, cut, folder / INDEX_FILE)

    @property
    def order(self) -> list[int]:
        """Indices of the items in the order of reading."""
        return permute(np.arange(len(self.items)), len(self.items), self.cut.seed, 0).tolist()  # type: ignore[no-any-return]

    def batches(self, step: int, parallel: bool = True, tell: Callable[[str], None] = log) -> Iterator[Columns]:
        """Returns the global batches from a step on, up to the end of the corpus.

        Args:
            step: step of the first batch.
            parallel: whether Ray Data tasks read ahead of training. If False, this process reads.
            tell: function that shows a message to the user. At the end of the corpus, it receives the number of
                unreadable records, if there are any.

        Raises:
            DataError: a file is broken or has changed since its item was first read, or too many records are bad.
        """
        index = ItemIndex.open(self.index)
        begin = self.cut.start_of(step)
        position = index.item_at(begin, len(self.items))
        items = [self.items[number] for number in self.order[position:]]
        chunks = self._chunks(items) if parallel else self._here(items)
        pieces = self._pieces(chunks, position, index, tell)
        return self.cut.batches(dropped(pieces, begin - index.begin(position)), step)

    def _here(self, items: list[dict[str, Any]]) -> Iterator[pa.Table]:
        tokenize = Tokenize(self.encode)
        for item in items:
            for chunk in self.read(batch_of(item)):
                yield tokenize(chunk)

    def _chunks(self, items: list[dict[str, Any]]) -> Iterator[pa.Table]:
        if not items:
            return
        # tasks request no CPU, because training may hold all CPUs
        tasks = max(1, int(ray.cluster_resources().get("CPU", 1)) // 4)
        encode = replace(
            self.encode, shared=share_tokenizer(self.encode.pretrained, bool(self.encode.form.marks), False)
        )
        folder = self.index.parent
        with user_errors(), data_settings(READ_AHEAD_BYTES, target_max_block_size=1):
            options: dict[str, Any] = {"num_cpus": 0, "compute": TaskPoolStrategy(size=tasks)}
            dataset = (
                ray.data.from_items(items, override_num_blocks=len(items))
                .map_batches(OnNode(self.read, False, folder), batch_size=1, batch_format="numpy", **options)
                .map_batches(OnNode(Tokenize(encode), False, folder), batch_size=1, batch_format="pyarrow", **options)
            )
            yield from dataset.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=2)

    def _pieces(
        self, chunks: Iterable[pa.Table], position: int, index: ItemIndex, tell: Callable[[str], None]
    ) -> Iterator[Columns]:
        """Yields the stream from an item's beginning on, and records each finished item's length in the index.

        At the end of the corpus, the share of unreadable records is checked, and the user is told their number.
        """
        tally, tokens, is_whole = Tally(), 0, position == 0
        for chunk in chunks:
            columns = columns_of(chunk)
            tokens += len(columns[TOKENS])
            if text := chunk.column("tally")[0].as_py():
                _add_checked(tally, text, self.read)
                index.add(position, tokens)
                position, tokens = position + 1, 0
            if len(columns[TOKENS]):
                yield columns
        if not tally.bad:
            return
        if is_whole:  # a resumed run does not read the earlier items again, so the rest may have few records
            check_few_bad(tally, self.read.corpus.max_bad_fraction)
        records = "records" if is_whole else "records since training was resumed"
        tell(f"skipped {sum(tally.bad.values())} of {tally.seen} {records}: {tally.unreadable}")


def _add_checked(tally: Tally, counts: str, read: Read) -> None:
    """Adds the counts of an item, and checks the share of unreadable records as soon as enough records were read."""
    tally.add(Tally(**json.loads(counts)))
    if tally.seen >= ENOUGH_RECORDS:
        check_few_bad(tally, read.corpus.max_bad_fraction, "records read so far")


@dataclass(frozen=True)
class Tokenize:
    """The Ray Data task that tokenizes the training documents of a chunk of texts."""

    encode: Encode

    def __call__(self, table: pa.Table) -> pa.Table:
        """Returns one row with the tokens, starts and marks of all training documents, one after another."""
        row = table.to_pylist()[0]
        documents, keys, _ = self.encode.tokens(row)
        documents = documents.where(~self.encode.heldout(keys))
        starts = np.zeros(documents.bounds[-1], bool)
        starts[documents.bounds[:-1][np.diff(documents.bounds) > 0]] = True
        flat = {name: pa.array(values) for name, values in {**documents.columns, STARTS: starts}.items()}
        lists = {name: pa.LargeListArray.from_arrays([0, len(values)], values) for name, values in flat.items()}
        return pa.table({**lists, "tally": [row["tally"]]})


def columns_of(chunk: pa.Table) -> Columns:
    """Returns the arrays of a tokenized chunk, keyed by column."""
    names = [name for name in chunk.column_names if name != "tally"]
    return {name: chunk.column(name)[0].values.to_numpy(zero_copy_only=False) for name in names}


DOCUMENTS = 2000
"""Maximum number of documents in the held-out sample."""
PLACES = 64
"""Number of items over which the held-out sample is spread, if the corpus has at least this many items."""
ORDER_SEED = 0
"""Seed of the held-out sample. This seed is fixed, so that runs with different seeds are measured on the same text."""


def sample_heldout(online: Online, folder: Path) -> dict[str, Any]:
    """Writes the held-out sample of a streamed corpus into `folder`, as the held-out shards of a prepared corpus.

    Returns:
        `heldout_documents` and `heldout_tokens`, how the tokenizer splits words (`legibility`), and the number of texts
            in each file of an evaluation set.

    Raises:
        DataError: a file is broken, the whole corpus contains no text, or too many of the records read are unreadable.
    """
    for leftover in folder.glob(HELDOUT_GLOB):
        leftover.unlink()
    # with share 1.0, all picked documents are held out
    encode = Encode(online.encode.pretrained, folder, 1.0, online.encode.form)
    fraction, items = online.encode.heldout_fraction, online.items
    places = min(len(items), PLACES)
    counts, taken, seen, read, total = Counter[str](), 0, 0, 0, DOCUMENTS * len(items)
    sample, chunks = Counter[str](), 0
    tally, whole = Tally(), 0  # `whole` counts the items read to their end
    with reading("prepare") as line:
        for position, number in enumerate(permute(np.arange(len(items)), len(items), ORDER_SEED, 0).tolist()):
            # the share is cumulative, so later items make up for documents that earlier items lacked
            share = min(DOCUMENTS, -(-DOCUMENTS * (position + 1) // places))
            left = share - taken  # counts documents of the corpus, also if each sentence is stored as a document
            for chunk in online.read(batch_of(items[number])):
                seen, read = seen + len(chunk.column("texts")[0]), read + text_bytes(chunk)
                if text := chunk.column("tally")[0].as_py():
                    _add_checked(tally, text, online.read)
                    whole += 1
                if chunks < PLACES:  # counts words in all documents of the chunk, because none of them may be held out
                    sample.update(encode.sample(chunk.to_pylist()[0]["texts"]))
                    chunks += 1
                picked = _picked(chunk, position, fraction, left)
                if documents := len(picked.column("texts")[0]):
                    counts.update(json.loads(encode(picked)["counts"][0]))
                taken, left = taken + documents, left - documents
                # the sample ends when it has enough documents or when all items are read
                done = max(taken * len(items), position * DOCUMENTS)
                line.update(seen, read, min(done, total - 1), total)
                if not left:
                    break
            if taken >= DOCUMENTS:
                break
        line.update(seen, read, total, total)
    if whole == len(items):
        check_few_bad(tally, online.read.corpus.max_bad_fraction)
    if not seen:
        raise DataError(
            f"the corpus is empty after cleaning: {tally.left_out or 'the files contain no record'}",
            "check corpus.paths, corpus.text_field and corpus.cleaning",
        )
    numbers = {name: counts[name] for name in ("heldout_documents", "heldout_tokens")}
    legibility = Legibility.of(sample)
    for fault in legibility.faults():
        log(f"prepare: {fault}")
    return {**numbers, "legibility": legibility, "evaluation_texts": online.read.screen.evaluation_texts}


def _picked(chunk: pa.Table, position: int, fraction: float, most: int) -> pa.Table:
    """Returns a new chunk with the first held-out documents of a chunk.

    Args:
        chunk: chunk of texts, as `Read` yields it.
        position: item number that the new chunk gets.
        fraction: held-out share of the corpus.
        most: maximum number of documents in the new chunk.
    """
    row = chunk.to_pylist()[0]
    pairs = list(zip(row["texts"], json.loads(row["entities"]), strict=True))
    chosen = [pairs[number] for number in np.flatnonzero(in_share(keys_of(row["texts"]), fraction))[:most]]
    texts, entities = [text for text, _ in chosen], [spans for _, spans in chosen]
    changed: dict[str, Any] = {"item": [position], "entities": [json.dumps(entities)]}
    changed["texts"] = pa.array([texts], chunk.schema.field("texts").type)
    return pa.table({**{name: chunk.column(name) for name in chunk.column_names}, **changed})


AHEAD = 4
"""Number of batches that a rank requests in advance, so that they are transferred while it trains."""


class Server:
    """Actor that reads a streamed corpus and holds each batch until all ranks have fetched their share of it.

    No rank is more than AHEAD steps ahead of another, so the number of batches in memory is bounded.
    """

    def __init__(
        self,
        online: Online,
        first_step: int,
        world: int,
        parallel: bool = True,
        tell: Callable[[str], None] = log,
    ) -> None:
        self._batches = online.batches(first_step, parallel, tell)
        self._next = first_step
        self._world = world
        self._held: dict[int, tuple[Columns | None, int]] = {}
        self._error: Exception | None = None

    def share(self, step: int, rank: int) -> Columns | None:
        """Returns a rank's part of a step's batch; None after the end of the corpus. Errors are raised in all ranks."""
        while self._next <= step:
            self._held[self._next] = self._make(), self._world
            self._next += 1
        batch, left = self._held.pop(step)
        if left > 1:
            self._held[step] = batch, left - 1
        if batch is None:
            return None
        rows = len(batch["rows"]) // self._world
        return take_places(batch, slice(rank * rows, (rank + 1) * rows))

    def _make(self) -> Columns | None:
        if self._error:  # without storing the error, the failed generator would look exhausted at the next call
            raise self._error
        try:
            return next(self._batches, None)
        except Exception as error:
            self._error = error
            raise


def serve(online: Online, first_step: int, world: int, tell: Callable[[str], None] = log) -> Any:
    """Starts the `Server` actor, which writes `online.index` and lives as long as the process that starts it.

    Args:
        online: the corpus.
        first_step: step of the first batch.
        world: number of ranks.
        tell: function that shows a message to the user (see `Online.batches`). The actor calls it.
    """
    actor = ray.remote(num_cpus=0, **pinned_home(online.index))(Server)
    return actor.remote(online, first_step, world, tell=tell)


@contextmanager
def served(server: Any, rank: int, first_step: int, last_step: int) -> Iterator[Iterator[Columns]]:
    """Yields an iterator over a rank's parts of the batches of steps [first_step, last_step).

    The iterator ends early if the corpus ends.

    Raises:
        DataError: the server could not read the corpus. All ranks receive the error.
    """
    shares = _shares(server, rank, first_step, last_step)
    first = next(shares, None)  # waits for the first batch here, so that the first step does not include this wait
    yield iter(()) if first is None else chain([first], shares)


def _shares(server: Any, rank: int, first_step: int, last_step: int) -> Iterator[Columns]:
    requests: deque[Any] = deque()
    steps = iter(range(first_step, last_step))
    while True:
        requests += [server.share.remote(step, rank) for step in islice(steps, AHEAD - len(requests))]
        if not requests:
            return
        with user_errors():
            share = ray.get(requests.popleft())
        if share is None:
            return
        yield share
