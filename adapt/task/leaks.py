"""Examples whose text comes more than once: in train again, or in what the model is tested on.

Two texts are the same if they are so in Unicode form NFKC, in lower case, with single spaces; of a pair, if both are.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from adapt.corpus.shingles import normalised
from adapt.task.read import Example


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
