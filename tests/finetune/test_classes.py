"""Scores of classes are scikit-learn's, bit for bit."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from adapt.finetune.classes import ClassCounts


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("single", [True, False])
def test_all_scores_are_scikit_learns(single: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    classes, examples = int(random.integers(2, 20)), int(random.integers(1, 200))
    if single:  # the last class never comes in the truth
        true = random.integers(0, classes - 1, examples)
        guess = np.where(random.random(examples) < 0.6, true, random.integers(0, classes, examples))
        counts = ClassCounts.of(np.eye(classes, dtype=bool)[true], np.eye(classes, dtype=bool)[guess])
    else:
        true = random.random((examples, classes)) < 0.2
        guess = np.where(random.random(true.shape) < 0.7, true, random.random(true.shape) < 0.2)
        counts = ClassCounts.of(true, guess)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = precision_recall_fscore_support(true, guess, labels=range(classes), zero_division=0)
        assert counts.macro_f1(occurring=single) == f1_score(true, guess, average="macro", zero_division=0)
        assert counts.micro_f1 == f1_score(true, guess, average="micro", zero_division=0)
        assert counts.accuracy == accuracy_score(true, guess)
    by_class = counts.by_class([str(number) for number in range(classes)])
    found = [[each[name] for each in by_class.values()] for name in ("precision", "recall", "f1", "support")]
    assert found == [column.tolist() for column in columns]


def test_without_any_class_all_is_0_but_the_accuracy() -> None:
    none = np.zeros((3, 2), bool)
    counts = ClassCounts.of(none, none)
    assert (counts.macro_f1(occurring=False), counts.micro_f1, counts.accuracy) == (0, 0, 1)
    assert counts.by_class(["a", "b"])["b"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
