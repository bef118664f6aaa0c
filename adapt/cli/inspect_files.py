"""Detects the contents of a user's files: text and label fields, number of documents, and examples of a task."""

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig, TaskConfig
from adapt.corpus import heldout, screening
from adapt.corpus.documents.document_files import check_packages
from adapt.corpus.files import manifest, storage
from adapt.corpus.files.filesystem import name_of
from adapt.corpus.files.formats import DELIMITERS, DOCUMENTS, WITHOUT_FIELDS, Bad, fix_of, format_of
from adapt.corpus.files.records import Reading, check_field, read_objects, read_records, texts
from adapt.evaluate.measurements import FEWEST
from adapt.stage.training_plan import documents_to_measure
from adapt.support.errors import DataError
from adapt.task.labelled_examples import check_split, classes_of

SAMPLE_BYTES = 32 << 20
"""Maximum amount of text to read from all files together [bytes]."""
SAMPLE_TEXTS = 500
SAMPLE_FILES = 50
"""Maximum number of files to read. They are evenly spaced among all files."""
_RECORDS = 1000
"""Number of records to read from a text file to detect its fields."""
_EXAMPLES = 50_000
"""Number of records to read from a file of a task. The number is large, because files may be sorted by label."""
_MOST_LABELS = 400
"""Maximum number of distinct values of a label field."""
_TEXT_NAMES = ("text",)
_LABEL_NAMES = ("label", "labels")
_WORD_NAMES = ("tokens", "words")
_SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid", "val"), "test": ("test",)}
"""Prefixes of file names, keyed by split."""
_COMPRESSED_SHARE = {"parquet": 0.5, "arrow": 1.0}


@dataclass
class FieldStatistics:
    """Statistics of a field's values in a sample of records."""

    name: str
    strings: int = 0
    characters: int = 0
    prose: int = 0
    """Number of characters in values with a space or a non-ASCII letter. Ids, hashes and addresses have neither."""
    lists: int = 0
    """Number of values that are lists of strings."""
    others: int = 0
    values: dict[str, int] = field(default_factory=dict)
    """Counts of strings and integers, keyed by value. Counts at most _MOST_LABELS + 1 distinct values."""

    def add(self, value: Any) -> None:
        """Adds a value of the field to the statistics."""
        if isinstance(value, str):
            self.strings += 1
            self.characters += len(value)
            self.prose += len(value) if " " in value.strip() or not value.isascii() else 0
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            self.lists += 1
        elif value is not None:
            self.others += 1
        for label in value if isinstance(value, list) else [value]:
            if isinstance(label, str | int) and not isinstance(label, bool) and str(label).strip():
                name = str(label)[:80]
                if name in self.values or len(self.values) <= _MOST_LABELS:
                    self.values[name] = self.values.get(name, 0) + 1

    @property
    def may_be_label(self) -> bool:
        """Whether the field has at least two distinct values, but few enough that values repeat."""
        count = len(self.values)
        return 2 <= count <= _MOST_LABELS and 2 * count <= sum(self.values.values())

    def __str__(self) -> str:
        held = {"text": self.strings, "lists of strings": self.lists, "other values": self.others}
        most = max(held, key=lambda name: held[name])
        if not held[most]:
            most = "nothing"
        length = f" of about {self.characters / self.strings:.0f} characters" if most == "text" else ""
        return f"{self.name!r} ({most}{length})"


def field_statistics(records: Iterable[Any]) -> dict[str, FieldStatistics]:
    """Collects statistics of the fields of records, keyed by field name.

    Args:
        records: mappings from field names to values. Records of other types are skipped.
    """
    seen: dict[str, FieldStatistics] = {}
    for record in records:
        if not isinstance(record, Bad):
            for name, value in record.items():
                seen.setdefault(name, FieldStatistics(name)).add(value)
    return seen


def find_text(seen: dict[str, FieldStatistics], where: str) -> str:
    """Finds the field that holds the text: the field `text` if it has strings, otherwise the field with the most prose.

    Args:
        seen: statistics of the fields.
        where: the files, for the error message.

    Raises:
        DataError: no field holds text. The message names the fields.
    """
    for name in _TEXT_NAMES:
        if name in seen and seen[name].strings:
            return name
    prose = max(seen.values(), key=lambda each: each.prose, default=None)
    if prose is None or not prose.prose:
        raise DataError(
            f"{where}: no field holds text; the fields are {', '.join(map(str, seen.values())) or 'none'}",
            "write the text of each record as one string, into a field called text",
        )
    return prose.name


@dataclass(frozen=True)
class CorpusProperties:
    """Properties of a corpus, read from its files."""

    paths: list[str]
    """Paths of the corpus, as given on the command line."""
    files: list[str]
    size: int
    """Total size of all files on disk [bytes]."""
    text_field: str | None
    """Name of the field with the text, or None if all files are plain text."""
    other_fields: list[str]
    text_unit: str
    """Unit of plain text that is one document: `line` or `paragraph`."""
    documents: int
    """Number of documents that the default cleaning keeps. The number is an estimate unless `is_whole`."""
    dropped: int
    """Number of documents in the sample that the default cleaning drops."""
    text_bytes: int
    """Size of the kept documents [UTF-8 bytes]. The size is an estimate unless `is_whole`."""
    is_whole: bool
    """Whether all text of the corpus was read."""
    heldout_fraction: float
    heldout_documents: int
    """Approximate number of documents that `heldout_fraction` holds out."""
    formats: dict[str, int]
    """Number of files of each format."""
    read: int
    """Number of records in the sample, readable or not."""
    bad: dict[str, int]
    """Number of unreadable records in the sample, keyed by reason."""
    sample: list[str]
    """At most SAMPLE_TEXTS texts of the sample, spread over the sample, after the default cleaning."""


def inspect_corpus(paths: Sequence[str]) -> CorpusProperties:
    """Inspects the files of a corpus, reading at most about SAMPLE_BYTES.

    Args:
        paths: files, folders, glob patterns and URLs.

    Raises:
        DataError: a file is missing or has an unknown format, no field holds text, or cleaning drops all documents.
        StorageError: a remote store cannot be read.
    """
    files = manifest.expand_paths([*paths])
    formats = Counter(format_of(file)[0] for file in files)
    for kind in formats.keys() & {*DOCUMENTS}:
        check_packages(next(file for file in files if format_of(file)[0] == kind), kind)
    sampled = _spread(files)
    with_fields = [file for file in sampled if format_of(file)[0] not in WITHOUT_FIELDS]
    text_field, others = None, []
    if with_fields:
        seen = field_statistics(record for file in with_fields for record in _first_records(file))
        text_field = find_text(seen, _named(with_fields))
        others = [name for name in seen if name != text_field]
        for file in with_fields:
            check_field(
                file,
                text_field,
                "name only files with the same fields, or list the files as separate sources in corpus.sources",
            )
    unit = _unit([file for file in sampled if format_of(file)[0] == "text"])
    reading = Reading(text_field or "text", unit)
    corpus = CorpusConfig(text_unit=unit)  # type: ignore[arg-type]
    tally, kept, text_bytes, on_disk, is_whole = screening.Tally(), list[str](), 0, 0.0, len(sampled) == len(files)
    for file in sampled:
        share = _Share(_texts(file, reading), SAMPLE_BYTES // len(sampled))
        kept += screening.clean(share, corpus, tally, file)
        is_whole = is_whole and share.is_whole
        text_bytes += share.bytes
        on_disk += _size(file) if share.is_whole else share.bytes_on_disk(file)
    if not kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in {**tally.dropped, **tally.bad}.items())
        raise DataError(
            f"{_named(files)}: no document is left to train on ({reasons or 'the files are empty'})",
            fix_of(" ".join(tally.bad))
            or "give longer text: a document needs at least 20 characters, and at least half of them must be letters",
        )
    size = sum(map(_size, files))
    factor = 1.0 if is_whole else max(size / max(on_disk, 1.0), 1.0)
    if not is_whole and formats.keys() <= {*DOCUMENTS} - {"warc"}:  # a PDF's size says little about its amount of text
        factor = len(files) / len(sampled)
    documents = round(factor * len(kept)) if is_whole else int(float(f"{factor * len(kept):.2g}"))
    return CorpusProperties(
        [*paths],
        files,
        size,
        text_field,
        others,
        unit,
        documents,
        sum(tally.dropped.values()),
        round(factor * text_bytes),
        is_whole,
        *heldout_share(kept, documents, is_whole),
        dict(formats.most_common()),
        tally.seen,
        tally.bad,
        kept[:: -(-len(kept) // SAMPLE_TEXTS)],
    )


def heldout_share(texts: Sequence[str], documents: int, is_whole: bool) -> tuple[float, int]:
    """Chooses a value for `corpus.heldout_fraction`, and estimates the number of documents that the value holds out.

    Args:
        texts: texts of the sampled documents, after cleaning.
        documents: number of documents in the corpus.
        is_whole: whether `texts` contains all documents.
    """
    wanted = max(documents_to_measure(documents), FEWEST if documents >= 2 * FEWEST else 0)
    usual = CorpusConfig().heldout_fraction
    # uses the default share if it holds out enough; 1.5 is a margin, because the number of held-out documents is random
    if usual * documents >= 1.5 * wanted:
        most = 5000
        share = usual if usual * documents <= most else float(f"{most / documents:.1g}")
        return share, round(share * documents)
    if is_whole and (found := heldout.share_of_keys(heldout.keys_of(texts), wanted)):
        return found.share, found.documents
    share = min(float(f"{1.5 * wanted / max(documents, 1):.2g}"), 0.5)
    return share, round(share * documents)


def _texts(file: str, reading: Reading) -> Iterator[Any]:
    """Yields the texts of a file. Unlike a job, this function does not read a table twice to detect its quoting."""
    if format_of(file)[0] in DELIMITERS:
        return texts((record for _, record in read_objects(file, checks_quotes=False)), reading)
    return read_records(file, reading)


class _Share(Iterator[Any]):
    """Yields the first records of a file, until their text reaches a given number of bytes."""

    def __init__(self, records: Iterator[Any], limit: int) -> None:
        self.bytes, self.is_whole = 0, False
        self._records, self._limit = records, limit
        self._sample: list[str] = []

    def __next__(self) -> Any:
        if self.bytes > self._limit:
            raise StopIteration
        try:
            record = next(self._records)
        except StopIteration:
            self.is_whole = True
            raise
        if not isinstance(record, Bad):
            self.bytes += len(record.encode("utf-8", "replace"))
            if len(self._sample) < _RECORDS:
                self._sample.append(record)
        return record

    def bytes_on_disk(self, file: str) -> float:
        """Estimates how many bytes the texts read so far take up in the file on disk, which may be compressed."""
        kind, compression = format_of(file)
        if kind in DOCUMENTS and kind != "warc":  # a document file is never read in part, so its whole size counts
            return _size(file)
        if not compression:
            return self.bytes * _COMPRESSED_SHARE.get(kind, 1.0)
        text = "\n".join(self._sample).encode("utf-8", "replace")[: 4 << 20]
        return self.bytes * len(zlib.compress(text, 6)) / max(len(text), 1)


def _spread(files: Sequence[str]) -> list[str]:
    count = min(len(files), SAMPLE_FILES)
    return [files[number * len(files) // count] for number in range(count)]


def _size(file: str) -> int:
    return storage.state(file)[0] or 0


def _named(files: Sequence[str]) -> str:
    return files[0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _first_records(file: str, most: int = _RECORDS) -> Iterator[Any]:
    return (record for _, record in islice(read_objects(file, checks_quotes=False), most))


def _unit(files: Sequence[str]) -> str:
    """Decides whether a document of plain text is a line or a paragraph.

    Paragraphs of wrapped text have several lines.
    """
    paragraphs = lines = 0
    for file in files:
        for number, text in enumerate(read_records(file, Reading(text_unit="paragraph", max_bytes=1 << 20))):
            if number == _RECORDS:
                break
            if not isinstance(text, Bad):
                paragraphs, lines = paragraphs + 1, lines + text.count("\n") + 1
    return "paragraph" if paragraphs > len(files) and 1.5 * paragraphs < lines < 100 * paragraphs else "line"


@dataclass(frozen=True)
class TaskProperties:
    """Properties of a task, read from its files."""

    config: TaskConfig
    """The configuration of the task, with the detected fields."""
    examples: dict[str, int]
    """Number of examples, keyed by split."""
    classes: list[str]
    text_bytes: int
    """Size of the texts in train [UTF-8 bytes]."""
    other_texts: list[str]
    """Names of string fields other than the text and the label. One of them may hold the second text of a pair."""
    other_labels: list[str]
    """Names of other fields that could also hold the label."""

    @property
    def counts(self) -> str:
        """Text with the number of examples in each split."""
        return ", ".join(f"{split} {self.examples[split]:,}" for split in _SPLIT_NAMES if split in self.examples)

    @property
    def documents(self) -> int:
        """Number of examples in the train split."""
        return self.examples["train"]


def split_paths(given: Sequence[str]) -> dict[str, list[str]]:
    """Sorts the paths of option `--task` by split: up to three paths in the order train, dev, test, or one folder.

    Raises:
        DataError: a folder has no file whose name begins with `train`; the message names its files.
    """
    if len(given) > 1 or not Path(given[0]).expanduser().is_dir():
        return {split: [path] for split, path in zip(_SPLIT_NAMES, given, strict=False)}
    folder = given[0]
    files = manifest.expand_paths(folder)
    found: dict[str, list[str]] = {}
    for file in files:
        name, inside = name_of(file).name.lower(), name_of(file).parent.name.lower()
        for split, beginnings in _SPLIT_NAMES.items():
            if name.startswith(beginnings) or inside in beginnings:
                inner = os.path.relpath(file, Path(folder).expanduser().absolute())
                found.setdefault(split, []).append(os.path.join(folder, inner))
                break
    if "train" not in found:
        raise DataError(
            f"{folder} has no file of training examples; it has {', '.join(name_of(file).name for file in files)}",
            "name the files: --task TRAIN DEV TEST; or give them names that begin with train, dev and test",
        )
    return found


def inspect_task(paths: dict[str, list[str]], name: str = "") -> TaskProperties:
    """Inspects all files of a task. It reads them completely, as the job does.

    Args:
        paths: paths of the files, keyed by split. The split `train` is required.
        name: name of the task; empty to use the name of the folder or file of train.

    Raises:
        DataError: a file is missing or broken, no field holds text or labels, or labels are missing or wrong.
        StorageError: a remote store cannot be read.
    """
    files = manifest.expand_paths(paths["train"])
    records = [record for file in _spread(files) for record in _first_records(file, _EXAMPLES)]
    seen = field_statistics(records)
    kind, text, label, labels = _task_fields(records, seen, _named(files))
    near = Path(files[0])
    name = name or (near.parent.name if near.name.lower().startswith("train") else near.name.partition(".")[0])
    config = TaskConfig(
        name=plain_name(name) or "task",
        kind=kind,  # type: ignore[arg-type]
        text_field=text,
        label_field=label,
        **{split: files if len(files) > 1 else files[0] for split, files in paths.items()},  # type: ignore[arg-type]
    )
    splits = {split: check_split(config, split).examples for split in paths}
    return TaskProperties(
        config,
        {split: len(examples) for split, examples in splits.items()},
        classes_of(kind, {split: splits.get(split, splits["train"]) for split in _SPLIT_NAMES}),
        sum(len(example.text.encode("utf-8", "replace")) for example in splits["train"]),
        [each.name for each in seen.values() if each.name not in (text, label) and each.strings and each.characters],
        [name for name in labels if name != label],
    )


def _task_fields(
    records: Sequence[Any], seen: dict[str, FieldStatistics], where: str
) -> tuple[str, str, str, list[str]]:
    """Detects a task's kind, text field and label field, and lists all fields that could hold the label."""
    lists = {name: each for name, each in seen.items() if each.lists > each.strings + each.others}
    first: dict[str, Any] = next((record for record in records if not isinstance(record, Bad)), {})
    mixed = [name for name in seen if isinstance(first.get(name), list)]
    aligned = [pair for pair in combinations(mixed, 2) if all(_are_aligned(record, *pair) for record in records)]
    prose = [each for each in seen.values() if each.prose]
    if aligned and (not prose or any(name in _WORD_NAMES for pair in aligned for name in pair)):
        pair = next((pair for pair in aligned if {*pair} & {*_WORD_NAMES}), aligned[0])
        words = max(pair, key=lambda name: (name in _WORD_NAMES, len(seen[name].values)))
        return "tokens", words, next(name for name in pair if name != words), []
    text = find_text(seen, where)
    found = [name for name, each in seen.items() if name != text and each.may_be_label]
    found.sort(key=lambda name: (name not in _LABEL_NAMES, len(seen[name].values)))
    if not found:
        named = next((name for name in _LABEL_NAMES if name in seen), None)
        others = [str(each) for each in seen.values() if each.name != text]
        held = _why_no_label(seen[named]) if named else ""
        what = f"the field {named!r} {held}" if named else f"the other fields are {', '.join(others) or 'none'}"
        raise DataError(
            f"{where}: no field holds labels, which are a few values that many examples share; {what}",
            "give each example the name of its class in a field called label",
        )
    return ("multi_label" if found[0] in lists else "single_label"), text, found[0], found


def _why_no_label(seen: FieldStatistics) -> str:
    if not seen.values:
        return "holds neither strings nor integers"
    if len(seen.values) == 1:
        return "has only one value"
    return "has too many different values for a label"


def _are_aligned(record: Any, one: str, other: str) -> bool:
    """Returns whether two fields of a record hold lists of equal length, such as words and their labels."""
    if isinstance(record, Bad):
        return True
    first, second = record.get(one), record.get(other)
    return isinstance(first, list) and isinstance(second, list) and len(first) == len(second)


def plain_name(text: str) -> str:
    """Turns a text into a folder name of letters, digits, `-` and `_`."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text).strip("-_")[:60]
