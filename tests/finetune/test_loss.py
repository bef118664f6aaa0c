"""Losses and class weights are what scikit-learn and torch say."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from adapt.finetune.loss import TaskLoss, balanced
from adapt.task.data import IGNORED

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
