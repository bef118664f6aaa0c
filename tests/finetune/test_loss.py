"""Losses and class weights are what scikit-learn and torch say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from adapt.finetune.loss import TaskLoss, balanced
from adapt.finetune.problem import Problem
from adapt.task.data import IGNORED
from tests.finetune.toy import toy

LOGITS = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 3)))
TARGETS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
SEVERAL = (np.random.default_rng(1).random((9, 3)) < 0.5).astype(np.float32)


def test_balanced_weights_are_scikit_learns() -> None:
    expected = compute_class_weight("balanced", classes=np.arange(3), y=TARGETS)
    np.testing.assert_allclose(balanced(TARGETS, 3), expected, rtol=1e-6)
    ignored = np.concatenate((TARGETS, [IGNORED] * 4))
    np.testing.assert_allclose(balanced(ignored, 3), expected, rtol=1e-6)


def test_a_class_without_examples_weighs_nothing() -> None:
    np.testing.assert_allclose(balanced(TARGETS * 2, 5)[::2], balanced(TARGETS, 3))
    assert balanced(TARGETS * 2, 5)[1] == 0


def test_balanced_weights_of_several_labels() -> None:
    for column, weight in zip(SEVERAL.T, balanced(SEVERAL, 3), strict=True):
        no, yes = compute_class_weight("balanced", classes=np.arange(2), y=column)
        assert weight == pytest.approx(yes / no)


@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(weighted: bool) -> None:
    loss = TaskLoss("single_label", balanced(TARGETS, 3) if weighted else None)
    probabilities = loss.probabilities(LOGITS).double().numpy()
    weights = compute_sample_weight("balanced", TARGETS) if weighted else None
    found = loss(LOGITS, torch.from_numpy(TARGETS)).item()
    assert found == pytest.approx(log_loss(TARGETS, probabilities, sample_weight=weights), rel=1e-5)


def test_binary_cross_entropy() -> None:
    loss = TaskLoss("multi_label")
    probabilities = loss.probabilities(LOGITS).double().numpy()
    expected = [log_loss(SEVERAL[:, c], probabilities[:, c], labels=[0, 1]) for c in range(3)]
    assert loss(LOGITS, torch.from_numpy(SEVERAL)).item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_label_of_all_examples_is_learned_too() -> None:
    weights = balanced(np.array([[1, 0], [1, 1]], np.float32), 2)
    assert weights.tolist() == [1, 1]


def test_a_batch_without_labelled_tokens() -> None:
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = TaskLoss("tokens")(logits, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["single_label", "multi_label", "tokens"])
def test_losses_of_parts_add_up_by_their_masses(kind: str, weighted: bool, tmp_path: Path) -> None:
    """To the mean of all, though parts have units of other classes, or more of them."""
    toy(tmp_path, kind)
    examples = Problem.load(tmp_path, 128, []).examples["train"]
    loss = TaskLoss(kind, balanced(examples.targets, 3) if weighted else None)
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(int(examples.units.sum()), 3)))
    begins, masses = np.concatenate(([0], examples.units.cumsum())), loss.masses(examples)

    def mean(chosen: np.ndarray) -> float:
        units = np.concatenate([np.arange(begins[each], begins[each + 1]) for each in chosen])
        return loss(logits[units], examples.batch(chosen, torch.device("cpu")).targets).item()

    some = np.arange(2, 19)
    parts = np.split(some, [1, 6])
    together = sum(mean(part) * masses[part].sum() for part in parts) / masses[some].sum()
    assert together == pytest.approx(mean(some), rel=1e-5)
