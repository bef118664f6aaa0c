"""Tests that models with padded rows train like any other, on several ranks and after a resume."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from adapt.model.packing import padded
from tests.train.toy import Case, assert_close, reference, train

CASES = [Case(stage, is_padded=True) for stage in (0, 2, 3)]


def train_all(cases: list[Case]) -> list:
    """Trains several cases. The cost of a pass is set low, so that a micro-batch takes several passes."""
    with patch.dict(padded.PASS_TOKENS, cpu=2):
        return [train(case) for case in cases]


def test_two_ranks_take_the_steps_of_plain_torch(ranks) -> None:
    expected = reference(CASES[0])
    for outcome in ranks(2).run(train_all, CASES)[0]:
        assert_close(outcome, expected)


def test_a_resumed_training_ends_with_the_same_weights(ranks, tmp_path: Path) -> None:
    whole = replace(CASES[0], dropout=0.2, save=tmp_path, save_after=2)
    undisturbed, resumed = ranks(1).run(train_all, [whole, replace(whole, save=None, load=tmp_path)])[0]
    assert resumed.losses == undisturbed.losses[2:]
    assert all(torch.equal(weight, undisturbed.weights[name]) for name, weight in resumed.weights.items())
