"""Checks properties that hold for every world. A world is a random configuration with its files.

The checks do not use the code of `adapt` to count, read and compare.
"""

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adapt.corpus.token_shards import TokenStream
from adapt.runner import Record
from adapt.stage.model_evaluation import Evaluate
from adapt.support.errors import AdaptError
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB
from tests.fuzz.driver import SEEN, Ran
from tests.tokenizers import SPECIAL, roberta

UNPACK = {".gz": gzip.decompress, ".xz": lzma.decompress, ".bz2": bz2.decompress}
ALIKE = 0.9
"""Minimum Jaccard similarity of near copies. If near copies are removed, no training text is this similar to a measured
text."""


# --- every error ends with a message


def check_error(ran: Ran) -> None:
    """Checks that an error has a message and a fix."""
    if ran.error is None:
        return
    if not isinstance(ran.error, AdaptError):
        raise ran.error
    assert ran.error.what.strip()
    assert ran.error.fix.strip(), ran.error.what
    assert "Traceback" not in str(ran.error)


# --- every document and token is accounted for


def check_counts(ran: Ran) -> None:
    """Checks that each document was kept, held out or dropped for a reason, and that shards have the recorded sizes."""
    for record in ran.of("prepare"):
        metrics, heldout = record.metrics, documents(record.path, HELDOUT_GLOB)
        assert (len(heldout), sum(map(len, heldout))) == (metrics["heldout_documents"], metrics["heldout_tokens"])
        if _is_gathered(record):
            parts = [Path(each["path"]) for each in record.inputs.values()]
            assert heldout == [tokens for part in parts for tokens in documents(part, HELDOUT_GLOB)]
            continue
        if record.what.get("streaming"):
            continue
        train = documents(record.path, SHARD_GLOB)
        assert (len(train), sum(map(len, train))) == (metrics["train_documents"], metrics["train_tokens"])
        read = list(_records(record))
        left = sum(metrics["dropped"].values()) + sum(metrics["bad"].values())
        assert len(train) + len(heldout) + left == len(read)
        kept, given = Counter(map(text_of, train + heldout)), Counter(map(plain, filter(None, read)))
        assert metrics["changed"] or not kept - given, f"documents from nowhere: {kept - given}"


def check_special(ran: Ran) -> None:
    """Checks that special tokens occur only at the ends of documents.

    Text that looks like a special token is plain text.
    """
    special = {_id(name) for name in SPECIAL}
    for record in ran.of("prepare"):
        train = [] if _is_gathered(record) else documents(record.path, SHARD_GLOB)
        for start, *inside, end in train + documents(record.path, HELDOUT_GLOB):
            assert (start, end) == (_id("<s>"), _id("</s>"))
            assert not special & {*inside}, f"a special token stands inside of: {text_of([start, *inside, end])}"


def _is_gathered(record: Record) -> bool:
    """Returns whether a record combines several corpora for measuring. Such a record has only held-out shards."""
    return all(each["stage"] == "prepare" for each in record.inputs.values())


def check_training(ran: Ran) -> None:
    """Checks that training runs read as many rows as recorded, and that sources without tokens gave no rows."""
    for record in ran.of("train"):
        what, metrics = record.what["training"], record.metrics
        batch = what["global_batch_size"]
        if metrics["sources"] is None or not isinstance(batch, int):
            continue
        assert sum(source["rows"] for source in metrics["sources"].values()) == metrics["steps"] * batch
        for name, source in metrics["sources"].items():
            empty = not _metrics(record, name)["train_tokens"]
            assert source["rows"] == 0 or not empty


def _metrics(record: Record, name: str) -> Mapping[str, Any]:
    place = "replay" if name == "(replay)" else f"corpora.{name}"
    found: Mapping[str, Any] = json.loads((Path(record.inputs[place]["path"]) / "stage.json").read_text())["metrics"]
    return found


# --- no text that is measured was trained on


def check_leaks(ran: Ran) -> None:
    """Checks that no training run read a text that the model is measured on, in any spelling."""
    for stage in ran.stages.values():
        if not isinstance(stage, Evaluate) or any(needed.key not in ran.records for needed in stage.inputs.values()):
            continue
        trained = {text for training in _trainings(stage) for text in _trained(ran.records[training])}
        asked = any(ran.records[training].metrics["transductive"] for training in _trainings(stage))
        for name, text in stage.corpora.items():
            if not (asked and name == "domain"):
                prepared = ran.records[text.key].path
                measured = {text_of(tokens) for tokens in documents(prepared, HELDOUT_GLOB)}
                assert not measured & trained, f"{name} is measured on what was trained on: {measured & trained}"
                if _is_near(ran):
                    pairs = ((m, t) for m in measured for t in trained)
                    assert not (found := [pair for pair in pairs if similarity(*pair) >= ALIKE]), f"{name}: {found}"


def _trainings(stage: Any) -> Iterator[str]:
    """Yields the keys of all training runs that a stage depends on, directly or indirectly."""
    for needed in stage.inputs.values():
        if needed.kind == "train":
            yield needed.key
        yield from _trainings(needed)


def _trained(record: Record) -> set[str]:
    """Returns the texts that a training run read, and the texts that the run would have read if it had continued."""
    if streamed := json.loads((record.path / SEEN).read_text())["stream"]:
        return set(map(text_of, split(streamed)))
    texts = (made for made in record.inputs.values() if made["stage"] == "prepare")
    return {text_of(tokens) for made in texts for tokens in documents(Path(made["path"]), SHARD_GLOB)}


def _is_near(ran: Ran) -> bool:
    return any(
        stage.what().get("deduplicate") == "near" or "near_ngram" in stage.what() for stage in ran.stages.values()
    )


def similarity(one: str, other: str) -> float:
    """Returns the Jaccard similarity of the word 5-grams of two texts."""
    runs = [_runs(text) for text in (one, other)]
    return len(runs[0] & runs[1]) / max(1, len(runs[0] | runs[1]))


@cache
def _runs(text: str) -> frozenset[tuple[str, ...]]:
    words = text.split()
    return frozenset(tuple(words[n : n + 5]) for n in range(len(words) - 4))


# --- results of stages, which tests compare between runs


Results = dict[str, tuple[str, str]]
"""Results of stages, keyed by the stage's key: the kind of the stage, and a digest of all its files."""


def results(ran: Ran) -> Results:
    """Returns the results of all finished stages."""
    return {key: (record.stage, _result(record)) for key, record in ran.records.items()}


def _result(record: Record) -> str:
    digest = hashlib.sha256()
    made = {name for name in record.outputs if record.stage != "train" or name == SEEN}
    for name in sorted(made - {"manifest.json"}):  # The manifest depends on the paths of files.
        if name.startswith("rejects/"):  # Rejects are written only if configured, and do not affect results.
            continue
        content = (record.path / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    kept = {name: value for name, value in record.metrics.items() if record.stage != "manifest"}
    digest.update(json.dumps(_placeless(kept), sort_keys=True).encode())
    return digest.hexdigest()


def _placeless(value: Any) -> Any:
    """Removes file names from metrics that are keyed by file."""
    if not isinstance(value, dict):
        return value
    named = [_placeless(each) for name, each in value.items() if "/" in name]
    return [{name: _placeless(each) for name, each in value.items() if "/" not in name}, named]


# --- texts


def plain(text: str) -> str:
    """Returns a text as a reader sees it: no invisible characters, one Unicode form, lower case, single spaces."""
    one = unicodedata.normalize("NFKC", text).lower()
    seen = (c for c in one if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc"))
    return " ".join("".join(seen).split())


def text_of(tokens: Iterable[int]) -> str:
    """Decodes the tokens of a document."""
    _, *inside, _ = tokens
    return plain(roberta().decode(inside, skip_special_tokens=False))


@cache
def _id(name: str) -> int:
    return int(roberta().token_to_id(name))


def split(stream: list[int]) -> Iterator[list[int]]:
    """Yields the complete documents in a sequence of tokens."""
    document: list[int] = []
    for token in stream:
        document.append(token)
        if token == _id("</s>"):
            yield document
            document = []


def documents(folder: Path, pattern: str) -> list[list[int]]:
    """Returns the token ids of each document in the shards whose file names match a pattern."""
    stream = TokenStream.open(folder, pattern)
    return [stream.document(number).tolist() for number in range(stream.documents)]


def _records(record: Record) -> Iterator[str | None]:
    """Yields the text of each record in the files of a prepared corpus, or None for a record without text."""
    if "texts" in record.inputs:
        files = [str(Path(record.inputs["texts"]["path"]) / "texts.jsonl")]
        yield from read(Path(files[0]), "line")
        return
    listed = json.loads((Path(record.inputs["files.listing"]["path"]) / "manifest.json").read_text())
    for part in listed["parts"]:
        yield from read(Path(part["path"]), record.what["corpus"]["text_unit"])


def read(file: Path, unit: str) -> Iterator[str | None]:
    """Reads the records of a file with as little code as possible."""
    suffix, content = file.suffix, file.read_bytes()
    if suffix in UNPACK:
        suffix, content = Path(file.stem).suffix, UNPACK[suffix](content)
    if not content:
        return
    if suffix in (".parquet", ".arrow"):
        source = io.BytesIO(content)
        table = pq.read_table(source) if suffix == ".parquet" else pa.ipc.open_file(source).read_all()
        yield from table.column("text").to_pylist()
        return
    text = content.decode()
    if suffix in (".csv", ".tsv"):
        rows = csv.DictReader(io.StringIO(text), delimiter="," if suffix == ".csv" else "\t")
        yield from (row["text"] for row in rows)
    elif suffix == ".txt":
        lines = text.split("\n")
        yield from lines[: len(lines) - (not lines[-1])] if unit == "line" else _paragraphs(lines)
    else:
        yield from (_object(line) for line in text.split("\n") if line.strip())


def _paragraphs(lines: list[str]) -> Iterator[str]:
    held: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []


def _object(line: str) -> str | None:
    try:
        found = json.loads(line)["text"]
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None
