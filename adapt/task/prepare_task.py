"""Stage `task`: reads, checks and tokenizes a labelled task, searches it for leaks, and writes its files.

`Facts` and `Split` write and read these files. A dev or test example leaks if its text is also in train. Texts are
compared in Unicode form NFKC, in lower case and with single spaces. Two pairs are equal if both their first and their
second texts are equal.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adapt.config import TaskConfig
from adapt.corpus import shingles, text_profile
from adapt.corpus.files.formats import Bad
from adapt.model.locate import Pretrained
from adapt.model.tokenize.text_tokenizer import known_of
from adapt.runner.files import write_atomically
from adapt.support.errors import ConfigError
from adapt.support.redact import redact
from adapt.task import labelled_examples
from adapt.task.labels import label_warnings
from adapt.terminal.console import log

SPLITS = ("train", "dev", "test")
TASK_FILE = "task.json"
IGNORED = -100
"""Label of unscored tokens in tasks of kind `tokens`: special tokens, and tokens that do not begin a word."""


@dataclass(frozen=True)
class Facts:
    """Name, kind, classes and metric of a task, which fine-tuning needs besides its examples."""

    name: str
    kind: str
    """`single_label`, `multi_label` or `tokens`."""
    labels: list[str]
    """Names of the classes, sorted. A label in `Split` is an index into this list."""
    metric: str
    """`macro_f1`, `micro_f1`, `accuracy` or `entity_f1`."""

    def save(self, folder: Path) -> None:
        """Writes `task.json` into the folder."""
        write_atomically(folder / TASK_FILE, json.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Facts":
        """Reads `task.json` from the folder."""
        return cls(**json.loads((folder / TASK_FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Split:
    """The examples of one split, in the order of their files."""

    ids: list[str]
    tokens: list[np.ndarray]
    """Token ids of each example, int32, with special tokens and not truncated. The tokenizer joins pairs of texts."""
    segments: list[np.ndarray]
    """Segments of each example (token_type_ids), int8: 0 for tokens of the first text, 1 for tokens of the second."""
    labels: list[int] | list[list[int]]
    """Labels of each example: the index of its class; for `multi_label`, a list of indices of classes; for `tokens`,
    one index per token, which is IGNORED for tokens without a label."""
    leaked: list[bool]
    """Whether the text of each example is also in train, ignoring case and spaces. For train itself, all are False."""

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, folder: Path, split: str) -> None:
        """Writes `{split}.arrow` into the folder."""
        columns = {
            "id": pa.array(self.ids, pa.string()),
            "tokens": pa.array(self.tokens, pa.list_(pa.int32())),
            "segments": pa.array(self.segments, pa.list_(pa.int8())),
            "label": _label_column(self.labels),
            "leaked": pa.array(self.leaked, pa.bool_()),
        }
        table = pa.table(columns)
        with pa.OSFile(str(folder / f"{split}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def load(cls, folder: Path, split: str) -> "Split":
        """Reads `{split}.arrow` from the folder."""
        with pa.memory_map(str(folder / f"{split}.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
            arrays = {name: [np.array(row) for row in table[name].to_pylist()] for name in ("tokens", "segments")}
            return cls(
                table["id"].to_pylist(),
                [row.astype(np.int32) for row in arrays["tokens"]],
                [row.astype(np.int8) for row in arrays["segments"]],
                table["label"].to_pylist(),
                table["leaked"].to_pylist(),
            )


def _label_column(labels: Sequence[int] | Sequence[Sequence[int]]) -> pa.Array:
    is_single = bool(labels) and isinstance(labels[0], int)
    return pa.array(labels, pa.int64() if is_single else pa.list_(pa.int64()))


@dataclass(frozen=True)
class TextLengths:
    """Lengths of a split's examples before truncation [tokens]."""

    mean: float
    longest: int

    @classmethod
    def of(cls, tokens: Sequence[np.ndarray]) -> "TextLengths":
        """Measures the token ids of a split's examples."""
        lengths = [len(ids) for ids in tokens]
        return cls(sum(lengths) / len(lengths), max(lengths))


@dataclass(frozen=True)
class TaskPrepared:
    """Result of the stage: contents and problems of a task. Mappings are keyed by split unless stated otherwise.

    The stage's folder contains `task.json` and one Arrow file per split.
    """

    examples: dict[str, int]
    tokens: dict[str, TextLengths]
    empty_texts: dict[str, int]
    unusable: dict[str, dict[str, int]]
    """Number of excluded records of each split, keyed by reason."""
    vanished_words: dict[str, int]
    """Number of labelled words for which the tokenizer yields no token, for tasks of kind `tokens`."""
    labels: dict[str, dict[str, int]]
    """Number of occurrences of each label in each split."""
    unseen_classes: list[str]
    """Labels that occur in dev or test but not in train."""
    absent_classes: dict[str, list[str]]
    """Labels that occur in train but not in dev or test, keyed by the split in which they do not occur."""
    duplicates: int
    """Number of train examples that have the text and the label of an earlier train example."""
    conflicting: int
    """Number of train examples whose text has another label in another train example."""
    leaks: dict[str, int]
    """Number of examples whose text also occurs in another split, keyed by both splits, such as `dev_in_train`."""
    label_warnings: list[str] = field(default_factory=list)
    """Warnings about labels that may be wrong, each with file and line of one example; see `adapt.task.labels`."""
    text_faults: list[str] = field(default_factory=list)
    """Problems of the tokenizer with the train texts. Each entry also says what to do."""


_BATCH = 1000
"""Number of examples that are tokenized at once. The number is limited because the tokenizer needs many times the
memory of the texts."""


@dataclass
class Encoded:
    """Tokenized examples in order. All fields except `vanished_words` are as in `Split`."""

    tokens: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    vanished_words: int = 0
    """Number of words without a token, such as single control characters, in tasks of kind `tokens`. These words get no
    label and no score."""


def encode(
    examples: Sequence[labelled_examples.Example],
    kind: str,
    classes: Sequence[str],
    tokenizer: Any,
) -> Encoded:
    """Tokenizes examples without truncation.

    The tokenizer joins pairs. Segments are the tokenizer's `token_type_ids`, or 0 if it returns none. A text without
    tokens gets one token, the end of text (else padding, else id 0), because a model needs at least one.

    For `tokens`, the words are tokenized as one text with spaces between them, as in pre-training. Words that are
    tokenized one by one would lack the leading space that byte-level tokenizers include in a word. The label of a word
    belongs to the first token that ends inside the word.

    Args:
        examples: examples of a split.
        kind: kind of the task.
        classes: classes of the task. A label is encoded as its index in this list.
        tokenizer: fast tokenizer, from `adapt.model.tokenizer.load_text_tokenizer`.
    """
    encoded = Encoded()
    index = {name: number for number, name in enumerate(classes)}
    only_token = next((number for number in (tokenizer.eos_token_id, tokenizer.pad_token_id) if number is not None), 0)
    for example, ids, segments, offsets in _tokenized(examples, kind, tokenizer):
        encoded.tokens.append(np.array(ids or [only_token], np.int32))
        encoded.segments.append(np.array(segments if ids else [0], np.int8))
        labels = [index[str(label)] for label in example.labels]
        if kind == "tokens":
            begun = _first_tokens(example.words, offsets)
            encoded.labels.append([IGNORED if word is None else labels[word] for word in begun] or [IGNORED])
            encoded.vanished_words += len(labels) - sum(word is not None for word in begun)
        else:
            encoded.labels.append(labels if kind == "multi_label" else labels[0])
    return encoded


def _tokenized(
    examples: Sequence[labelled_examples.Example], kind: str, tokenizer: Any
) -> Iterator[tuple[labelled_examples.Example, list[int], list[int], list[tuple[int, int]]]]:
    """Yields each example with its token ids, its segments, and, for `tokens`, start and end of each token."""
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        pairs = [example.pair for example in batch]
        encoding = tokenizer(
            [example.text for example in batch],
            None if pairs[0] is None else pairs,
            return_attention_mask=False,
            return_offsets_mapping=kind == "tokens",
        )
        ids = encoding["input_ids"]
        segments = encoding.get("token_type_ids") or [[0] * len(tokens) for tokens in ids]
        yield from zip(batch, ids, segments, encoding.get("offset_mapping") or [[]] * len(ids), strict=True)


def _first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """Returns, for each token, the index of the word that starts with this token; None if no word does.

    A token belongs to the word of its last character, because byte-level tokens may begin with the space before the
    word, or consist of a space only.
    """
    word_of = [owner for number, word in enumerate(words) for owner in (*[number] * len(word), None)]
    begun: list[int | None] = []
    latest = -1
    for begin, end in offsets:
        word = word_of[end - 1] if end > begin else None
        is_first = word is not None and word > latest
        begun.append(word if is_first else None)
        latest = word if is_first and word is not None else latest
    return begun


def check_task(task: TaskConfig) -> None:
    """Reads the beginning of each file, so that a wrong path or field is reported before the job starts.

    Raises:
        ConfigError: a split names no file, or settings contradict each other.
        DataError: a file is missing or broken, its first record lacks a field, or a split has no usable example.
        StorageError: a store failed repeatedly.
    """
    if task.kind == "tokens" and task.pair_field:
        raise ConfigError(
            "task.pair_field is set, but with task.kind tokens an example has one text", "leave task.pair_field out"
        )
    for split in SPLITS:
        is_usable, fault = False, ""
        for file in labelled_examples.split_files(task, split):
            for place, example in labelled_examples.read_file(task, file):
                if not isinstance(example, Bad):
                    is_usable = True
                    break
                fault = fault or f"; the first record is unusable: {place}: {example}"
        if not is_usable:
            raise labelled_examples.no_example(task, split, fault)


def prepare_task(task: TaskConfig, pretrained: Pretrained, folder: Path) -> TaskPrepared:
    """Writes `task.json` and an Arrow file for each split into an existing folder. Files of these names are replaced.

    Raises:
        ConfigError, DataError, StorageError: see `adapt.task.labelled_examples`.
        ModelError: the tokenizer cannot be used.
    """
    from adapt.model.tokenizer import load_text_tokenizer  # imported here, because it loads transformers

    checked = {split: labelled_examples.check_split(task, split) for split in SPLITS}
    splits = {split: read.examples for split, read in checked.items()}
    classes = labelled_examples.classes_of(task.kind, splits)
    label_remarks = [redact(remark) for remark in label_warnings(task.kind, splits)]
    for remark in label_remarks:
        log(f"task {task.name}: {remark}")
    leaked, leaks = find_leaks(splits)
    tokenizer = load_text_tokenizer(pretrained)
    sample = text_profile.count_sample([_whole(example) for example in splits["train"]], known_of(tokenizer))
    faults = text_profile.Legibility.of(sample).faults()
    for fault in faults:
        log(f"task {task.name}: {fault}")
    encoded = {split: encode(examples, task.kind, classes, tokenizer) for split, examples in splits.items()}
    for split, examples in splits.items():
        tokenized = encoded[split]
        ids = [example.id for example in examples]
        Split(ids, tokenized.tokens, tokenized.segments, tokenized.labels, leaked[split]).save(folder, split)
    Facts(task.name, task.kind, classes, labelled_examples.metric_of_task(task)).save(folder)
    counts = {
        split: Counter(str(label) for example in examples for label in example.labels)
        for split, examples in splits.items()
    }
    learned = [name for name in classes if counts["train"][name]]
    return TaskPrepared(
        examples={split: len(examples) for split, examples in splits.items()},
        tokens={split: TextLengths.of(tokenized.tokens) for split, tokenized in encoded.items()},
        empty_texts={split: read.empty_texts for split, read in checked.items()},
        unusable={split: read.unusable for split, read in checked.items()},
        vanished_words={split: tokenized.vanished_words for split, tokenized in encoded.items()},
        labels={name: {split: counts[split][name] for split in splits} for name in classes},
        unseen_classes=[name for name in classes if name not in learned],
        absent_classes={split: [name for name in learned if not counts[split][name]] for split in ("dev", "test")},
        **find_repeats(splits["train"]),
        leaks=leaks,
        label_warnings=label_remarks,
        text_faults=faults,
    )


def _whole(example: labelled_examples.Example) -> str:
    """Returns the text of an example. The two texts of a pair are joined by a space."""
    return f"{example.text} {example.pair or ''}"


def find_leaks(
    splits: Mapping[str, Sequence[labelled_examples.Example]],
) -> tuple[dict[str, list[bool]], dict[str, int]]:
    """Finds dev and test examples whose text is also in train. An empty text is never a leak.

    Returns:
        For each split, whether each example leaks (False in train), and the numbers of examples: `dev_in_train`,
        `test_in_train`, `test_in_train_same_label` (a train example has the same text and label), `test_in_dev`.
    """
    keys = {split: [_key(example) for example in examples] for split, examples in splits.items()}
    train, dev = set(keys["train"]) - {""}, set(keys["dev"]) - {""}
    labelled = {(key, _labels(example)) for key, example in zip(keys["train"], splits["train"], strict=True)}
    leaked = {split: [split != "train" and key in train for key in keys[split]] for split in splits}
    same_label = [
        leaks and (key, _labels(example)) in labelled
        for leaks, key, example in zip(leaked["test"], keys["test"], splits["test"], strict=True)
    ]
    counts = {
        "dev_in_train": sum(leaked["dev"]),
        "test_in_train": sum(leaked["test"]),
        "test_in_train_same_label": sum(same_label),
        "test_in_dev": sum(key in dev for key in keys["test"]),
    }
    return leaked, counts


def find_repeats(train: Sequence[labelled_examples.Example]) -> dict[str, int]:
    """Counts repeated and contradicting examples in train.

    Returns:
        `duplicates`: number of examples with the text and label of an earlier example; `conflicting`: number of
        examples whose text also has another label in train.
    """
    labels: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for example in train:
        labels[_key(example)][_labels(example)] += 1
    return {
        "duplicates": sum(counts.total() - len(counts) for counts in labels.values()),
        "conflicting": sum(counts.total() for counts in labels.values() if len(counts) > 1),
    }


def _key(example: labelled_examples.Example) -> str:
    """Returns a key that is equal for examples that differ only in case and spaces; "" for an empty example."""
    text, pair = shingles.normalised(example.text), shingles.normalised(example.pair or "")
    return f"{text}\n{pair}" if pair else text  # a normalised text contains no newline


def _labels(example: labelled_examples.Example) -> tuple[str, ...]:
    return tuple(map(str, example.labels))
