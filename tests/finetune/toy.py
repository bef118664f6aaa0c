"""Builds small prepared tasks that a tiny model can learn."""

from pathlib import Path

import numpy as np

from adapt.task.prepare_task import IGNORED, Facts, Split
from tests.samples import SPECIAL, VOCABULARY

CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
WORDS = np.arange(len(VOCABULARY) - 60, len(VOCABULARY))
SIGNS = WORDS[:3]
"""Words that determine the class of a text: one word per class."""


def toy(folder: Path, kind: str = "single_label", pairs: bool = False, train: int = 96, longest: int = 20) -> Facts:
    """Writes a prepared task with three classes to a folder and returns the description that fine-tuning reads."""
    folder.mkdir(parents=True, exist_ok=True)
    metric = "entity_f1" if kind == "tokens" else "macro_f1"
    facts = Facts("toy", kind, ["B-x", "I-x", "O"] if kind == "tokens" else ["a", "b", "c"], metric)
    facts.save(folder)
    for number, (name, size) in enumerate((("train", train), ("dev", 40), ("test", 41))):
        split(np.random.default_rng(number), size, kind, pairs, longest).save(folder, name)
    return facts


def split(draw: np.random.Generator, size: int, kind: str, pairs: bool, longest: int) -> Split:
    tokens, segments, labels = [], [], []
    for _ in range(size):
        body = draw.choice(WORDS[3:], draw.integers(4, longest))
        where = draw.permutation(len(body))
        if kind == "multi_label":
            label = np.flatnonzero(draw.random(3) < 0.4)
            body[where[: len(label)]] = SIGNS[label]
            labels.append(label.tolist())
        elif kind == "tokens":
            classes = draw.choice(3, len(body), p=[0.2, 0.2, 0.6])
            body[classes < 2] = SIGNS[classes[classes < 2]]
            known = np.where(np.arange(len(body)) % 3 == 2, IGNORED, classes)
            labels.append([IGNORED, *known.tolist(), IGNORED])
        else:
            labels.append(int(draw.integers(3)))
            body[where[0]] = SIGNS[labels[-1]]
        first = [CLS, *body, SEP]
        second = [*draw.choice(WORDS[3:], 3), SEP] if pairs else []
        tokens.append(np.array([*first, *second], np.int32))
        segments.append(np.array([0] * len(first) + [1] * len(second), np.int8))
    return Split([f"id{n}" for n in range(size)], tokens, segments, labels, [n % 5 == 0 for n in range(size)])
