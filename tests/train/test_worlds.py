"""Tests that a changing number of ranks does not change the losses and the model."""

from pathlib import Path

import pytest

from tests.train.toy import Case, Outcome, assert_close, train

SIZES = {"global_batch": 12, "micro_batch": 2, "dropout": 0.3}
WAYS = [(0, (1, 3, 2)), (1, (3, 2, 3)), (2, (3, 1, 2)), (3, (2, 3, 1))]  # (ZeRO stage, ranks of three runs in turn)


@pytest.fixture(scope="module")
def undisturbed(ranks) -> Outcome:
    (alone,) = ranks(1).run(train, Case(0, steps=6, **SIZES))
    return alone


@pytest.mark.parametrize(("stage", "worlds"), WAYS)
def test_losses_are_those_of_one_rank_whatever_ranks_come_and_go(
    ranks, undisturbed: Outcome, tmp_path: Path, stage: int, worlds: tuple[int, ...]
) -> None:
    """Losses and weights with 1 to 3 ranks in turn equal the results of one rank, also with dropout."""
    losses: list[float] = []
    for number, world in enumerate(worlds):
        load, save = (tmp_path / str(number) if number else None), tmp_path / str(number + 1)
        case = Case(stage, steps=2 * (number + 1), load=load, save=save, **SIZES)
        outcome = ranks(world).run(train, case)[0]
        losses += outcome.losses
    assert losses == pytest.approx(undisturbed.losses, rel=1e-5)
    assert_close(outcome, undisturbed, last=2)


def test_dropout_is_another_in_each_pass(ranks, undisturbed: Outcome) -> None:
    """Each pass draws its own dropout mask, so the loss of a step depends on which rows are in which pass.

    If all passes had the same dropout mask, the test above could not detect passes in a wrong order.
    """
    (others,) = ranks(1).run(train, Case(0, steps=1, **{**SIZES, "micro_batch": 4}))
    assert others.losses != pytest.approx(undisturbed.losses[:1], rel=1e-3)
