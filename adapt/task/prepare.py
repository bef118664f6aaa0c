"""A labelled task made ready: read, checked, searched for leaks, tokenized, and written with what was found."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapt.config import TaskConfig
from adapt.console import log
from adapt.corpus.files.formats import Bad
from adapt.corpus.shards.legible import Legibility, count_sample
from adapt.errors import ConfigError
from adapt.model.locate import Pretrained
from adapt.redact import redact
from adapt.task.check import check_split, classes_of, metric_of_task, no_example
from adapt.task.data import SPLITS, Facts, Split
from adapt.task.encode import Encoded, encode
from adapt.task.labels import label_warnings
from adapt.task.leaks import find_leaks, find_repeats
from adapt.task.read import Example, read_file, split_files


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
    """Writes `task.json` and an Arrow file for each split (see `adapt.task.data`).

    Args:
        task: the task.
        pretrained: the model, for its tokenizer.
        folder: an existing folder; files of the same names are replaced.

    Returns:
        What was found, JSON-able. By split: `examples`, `tokens` (`mean` and `longest` of an example, uncut),
        `empty_texts`, `unusable` (records left out, by reason), `vanished_words` (of `tokens`). By label and split:
        `labels`, how often each comes. `unseen_classes` come in dev or test and not in train; `absent_classes` in train
        and not in the split. `duplicates`, `conflicting` and `leaks` are of `adapt.task.leaks`; `label_warnings` are
        those of `adapt.task.labels`, and `text_faults` those of `adapt.corpus.shards.legible` in train.

    Raises:
        ConfigError, DataError, StorageError: as `adapt.task.check` says.
        ModelError: the tokenizer cannot be used.
    """
    from adapt.model.literal import load_text_tokenizer  # torch and transformers, which `check_task` does without
    from adapt.model.tokenize.portable import known_of
    from adapt.model.tokenize.quick import QuickTokenizer

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
