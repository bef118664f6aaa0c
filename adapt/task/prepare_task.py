"""Stage `task`: reads, checks and tokenizes a labelled task, searches it for leaks, and writes what was found.

An example leaks if its text is in train too and it is in dev or test. Two texts are equal if they are so in Unicode
form NFKC, in lower case, with single spaces; of a pair, if both are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config import TaskConfig
from adapt.corpus.files.formats import Bad
from adapt.corpus.legibility import Legibility, count_sample
from adapt.corpus.shingles import normalised
from adapt.model.locate import Pretrained
from adapt.model.tokenize.ragged import IDS
from adapt.support.errors import ConfigError
from adapt.support.redact import redact
from adapt.task.dataset import IGNORED, SPLITS, Facts, Split
from adapt.task.labelled_examples import (
    Example,
    check_split,
    classes_of,
    metric_of_task,
    no_example,
    read_file,
    split_files,
)
from adapt.task.labels import label_warnings
from adapt.terminal.console import log

if TYPE_CHECKING:
    from adapt.model.tokenize.text_tokenizer import QuickTokenizer


_BATCH = 1000
"""So many examples are tokenized at once. The tokenizer's own notes on a text are many times its size."""


@dataclass
class Encoded:
    """Examples in order; see `adapt.task.dataset.Split`."""

    tokens: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    vanished_words: int = 0
    """For `tokens`, words that no token begins in, such as single control characters. They get no label and no score.
    """


def encode(
    examples: Sequence[Example],
    kind: str,
    classes: Sequence[str],
    tokenizer: Any,
    quick: "QuickTokenizer | None" = None,
) -> Encoded:
    """Tokenizes examples, uncut.

    Pairs are joined as the tokenizer joins them. Segments are its `token_type_ids`, where the model has any, else 0.
    Where a text has no token at all, its only one is the end of text (or the padding, or else id 0), so that every
    example can pass a model.

    The words of `tokens` are tokenized as running text, with a blank between, because that is what the model was
    trained on; handed over one by one, they would lose the blank that byte-level tokenizers begin a word with. A word's
    label stands at the first token that ends inside of it.

    Args:
        examples: of a split.
        kind: of the task.
        classes: of the task; a label becomes its index.
        tokenizer: fast, as `adapt.model.tokenizer.load_text_tokenizer` gives it.
        quick: the same, made quick, for single texts.
    """
    encoded = Encoded()
    index = {name: number for number, name in enumerate(classes)}
    only_token = next((number for number in (tokenizer.eos_token_id, tokenizer.pad_token_id) if number is not None), 0)
    is_single = kind != "tokens" and all(example.pair is None for example in examples)
    if quick and is_single and not any(tokenizer("a").get("token_type_ids", ())):
        tokenized = _quickly(examples, quick)
    else:
        tokenized = _tokenized(examples, kind, tokenizer)
    for example, ids, segments, offsets in tokenized:
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


def _quickly(
    examples: Sequence[Example], quick: "QuickTokenizer"
) -> Iterator[tuple[Example, list[int], list[int], list[tuple[int, int]]]]:
    """Does what `_tokenized` does, for single texts in one segment."""
    for example, ids in zip(examples, quick([example.text for example in examples]).lists(IDS), strict=True):
        yield example, ids.tolist(), [0] * len(ids), []


def _tokenized(
    examples: Sequence[Example], kind: str, tokenizer: Any
) -> Iterator[tuple[Example, list[int], list[int], list[tuple[int, int]]]]:
    """Yields each example with its token ids, its segments, and, for `tokens`, where each token lies in the text."""
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
    """For each token, the number of the word whose first token it is, or None.

    A token belongs to the word that its last character stands in: byte-level tokens may begin with the blank before
    that word, and may be nothing but a blank.
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
    """Looks at each file's beginning, so that a wrong path or field costs a second and not a job.

    Raises:
        ConfigError: a split names no file, or settings contradict each other.
        DataError: a file is missing or broken, its first record lacks a field, or a split holds no usable example.
        StorageError: a store failed, again and again.
    """
    if task.kind == "tokens" and task.pair_field:
        raise ConfigError(
            "task.pair_field is set, but with task.kind tokens an example has one text", "leave task.pair_field out"
        )
    for split in SPLITS:
        is_usable, fault = False, ""
        for file in split_files(task, split):
            for place, example in read_file(task, file):
                if not isinstance(example, Bad):
                    is_usable = True
                    break
                fault = fault or f"; the first record is unusable: {place}: {example}"
        if not is_usable:
            raise no_example(task, split, fault)


def prepare_task(task: TaskConfig, pretrained: Pretrained, folder: Path) -> dict[str, Any]:
    """Writes `task.json` and an Arrow file for each split (see `adapt.task.dataset`).

    Args:
        task: the task.
        pretrained: the model, for its tokenizer.
        folder: an existing folder; files of the same names are replaced.

    Returns:
        What was found, JSON-able. By split: `examples`, `tokens` (`mean` and `longest` of an example, uncut),
        `empty_texts`, `unusable` (records left out, by reason), `vanished_words` (of `tokens`). By label and split:
        `labels`, how often each comes. `unseen_classes` come in dev or test and not in train; `absent_classes` in train
        and not in the split. `duplicates`, `conflicting` and `leaks` are of `find_repeats` and `find_leaks`;
        `label_warnings` are those of `adapt.task.labels`, and `text_faults` those of `adapt.corpus.legibility` in
        train.

    Raises:
        ConfigError, DataError, StorageError: as `adapt.task.labelled_examples` says.
        ModelError: the tokenizer cannot be used.
    """
    from adapt.model.tokenize.text_tokenizer import QuickTokenizer, known_of
    from adapt.model.tokenizer import load_text_tokenizer  # torch and transformers, which `check_task` does without

    checked = {split: check_split(task, split) for split in SPLITS}
    splits = {split: read.examples for split, read in checked.items()}
    classes = classes_of(task.kind, splits)
    label_remarks = [redact(remark) for remark in label_warnings(task.kind, splits)]
    for remark in label_remarks:
        log(f"task {task.name}: {remark}")
    leaked, leaks = find_leaks(splits)
    tokenizer = load_text_tokenizer(pretrained)
    quick = QuickTokenizer(tokenizer.backend_tokenizer)
    sample = count_sample([_whole(example) for example in splits["train"]], known_of(tokenizer))
    faults = Legibility.of(sample).faults()
    for fault in faults:
        log(f"task {task.name}: {fault}")
    encoded = {split: encode(examples, task.kind, classes, tokenizer, quick) for split, examples in splits.items()}
    for split, examples in splits.items():
        tokenized = encoded[split]
        ids = [example.id for example in examples]
        Split(ids, tokenized.tokens, tokenized.segments, tokenized.labels, leaked[split]).save(folder, split)
    Facts(task.name, task.kind, classes, metric_of_task(task)).save(folder)
    return {
        "examples": {split: len(examples) for split, examples in splits.items()},
        "tokens": {split: _lengths(tokenized) for split, tokenized in encoded.items()},
        "empty_texts": {split: read.empty_texts for split, read in checked.items()},
        "unusable": {split: read.unusable for split, read in checked.items()},
        "vanished_words": {split: tokenized.vanished_words for split, tokenized in encoded.items()},
        **_label_counts(classes, splits),
        **find_repeats(splits["train"]),
        "leaks": leaks,
        "label_warnings": label_remarks,
        "text_faults": faults,
    }


def _whole(example: Example) -> str:
    """Both texts of an example."""
    return f"{example.text} {example.pair or ''}"


def _lengths(encoded: Encoded) -> dict[str, float]:
    lengths = [len(tokens) for tokens in encoded.tokens]
    return {"mean": sum(lengths) / len(lengths), "longest": max(lengths)}


def _label_counts(classes: Sequence[str], splits: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    counts = {
        split: Counter(str(label) for example in examples for label in example.labels)
        for split, examples in splits.items()
    }
    return {
        "labels": {name: {split: counts[split][name] for split in splits} for name in classes},
        "unseen_classes": [name for name in classes if not counts["train"][name]],
        "absent_classes": {
            split: [name for name in classes if counts["train"][name] and not counts[split][name]]
            for split in ("dev", "test")
        },
    }


def find_leaks(splits: Mapping[str, Sequence[Example]]) -> tuple[dict[str, list[bool]], dict[str, int]]:
    """Dev and test examples whose text stands in train.

    An empty text is never a leak.

    Args:
        splits: examples of `train`, `dev` and `test`.

    Returns:
        For each split and example, whether it leaks (False in train); and how many there are: `dev_in_train`,
        `test_in_train`, `test_in_train_same_label` (as one of the train examples of that text has), `test_in_dev`.
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


def find_repeats(train: Sequence[Example]) -> dict[str, int]:
    """How often train repeats or contradicts itself.

    Returns:
        `duplicates`: examples whose text stood before with the same label; `conflicting`: examples whose text has
        another label elsewhere.
    """
    labels: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for example in train:
        labels[_key(example)][_labels(example)] += 1
    return {
        "duplicates": sum(counts.total() - len(counts) for counts in labels.values()),
        "conflicting": sum(counts.total() for counts in labels.values() if len(counts) > 1),
    }


def _key(example: Example) -> str:
    """A key that two examples share if they differ in case and spaces only; "" for an empty example."""
    text, pair = normalised(example.text), normalised(example.pair or "")
    return f"{text}\n{pair}" if pair else text  # a normalised text holds no newline


def _labels(example: Example) -> tuple[str, ...]:
    return tuple(map(str, example.labels))
