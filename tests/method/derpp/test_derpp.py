"""Tests DER++: its loss on replayed rows, compared with transformers, and the content of its reservoir."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adapt.config import Config, PhaseConfig, TrainingConfig
from adapt.method.base import Added, Setting
from adapt.method.derpp.method import Derpp, DerppOptions
from adapt.method.derpp.reservoir import priorities
from adapt.objective.objective import Batch, Corrupted
from adapt.support.errors import ConfigError
from tests.method.trained import BEFORE, loaded
from tests.train import toy
from tests.train.capacity.test_memory import ROBERTA

SEED, NUMBER = 3, 2


def prepared(tmp_path: Path, **options: Any) -> tuple[Derpp, Any]:
    method = Derpp(DerppOptions(**options))
    model = method.prepare_model(toy.model(), Setting(seed=SEED, number=NUMBER, carried=tmp_path))
    method.begin(None)
    return method, model


def rows(step: int) -> Corrupted:
    return toy.Objective().corrupt(Batch.of(toy.columns(step)))


def taken(method: Derpp, model: Any, step: int, size: int = 8) -> Tensor:
    """Runs the forward and backward passes of one step and returns the loss."""
    seen, total = rows(step), torch.zeros(())
    for loss, extra in method.losses(model, seen.split(size), toy.Objective(), step, len(seen.targets)):
        whole = loss / len(seen.targets) + (0 if extra is None else extra)
        whole.backward()
        total += whole.detach()
    return total


def by_hand(model: Any, seen: Corrupted) -> tuple[list[Tensor], list[Tensor]]:
    """Returns, for each row, the summed loss and the last hidden states at the predicted positions."""
    found = model(input_ids=seen.input_ids, attention_mask=seen.real, output_hidden_states=True)
    targets = seen.targets.split(seen.positions.sum(1).tolist())
    losses = [
        cross_entropy(logits[at], wanted, reduction="sum")
        for logits, at, wanted in zip(found.logits, seen.positions, targets, strict=True)
    ]
    return losses, [states[at] for states, at in zip(found.hidden_states[-1], seen.positions, strict=True)]


@pytest.mark.parametrize("size", [8, 3])
def test_the_loss_and_gradient_of_replayed_rows(tmp_path: Path, size: int) -> None:
    """Checks the second step, in which all rows of the first step are replayed with a changed model."""
    method, model = prepared(tmp_path, fraction=0.99, alpha=2.0, beta=0.7)
    taken(method, model, 0)
    _, then = by_hand(toy.model(), rows(0))
    assert len(method.rehearsal.reservoir.rows) == 8
    model.load_state_dict(loaded(BEFORE).state_dict())
    model.zero_grad()
    found = taken(method, model, 1, size)

    plain = toy.model()
    plain.load_state_dict(loaded(BEFORE).state_dict())
    own, _ = by_hand(plain, rows(1))
    losses, states = by_hand(plain, rows(0))
    count = len(rows(0).targets)
    differences = [
        (now - before.detach().half().float()).square().mean(1).sum() for now, before in zip(states, then, strict=True)
    ]
    expected = torch.stack(own).sum() / len(rows(1).targets)
    expected = expected + (0.7 * torch.stack(losses).sum() + 2.0 * torch.stack(differences).sum()) / count
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_replayed_rows_without_predictions_add_nothing(tmp_path: Path) -> None:
    """Checks a step in which no drawn row has a prediction, such as rows of one-token documents of a causal model."""
    method, model = prepared(tmp_path)
    taken(method, model, 0)
    reservoir = method.rehearsal.reservoir
    empty = {"targets": torch.zeros(0, dtype=torch.int32), "states": reservoir.rows[0].states[:0]}
    reservoir.rows = [
        replace(row, marks=row.marks & torch.tensor([[True], [True], [False]]), **empty) for row in reservoir.rows
    ]
    plain = toy.model()
    plain.load_state_dict(model.state_dict())
    own, _ = by_hand(plain, rows(1))
    found = taken(method, model, 1)
    assert found.item() == pytest.approx((torch.stack(own).sum() / len(rows(1).targets)).item(), rel=1e-4)


def test_the_reservoir_stores_rows_with_their_first_states(tmp_path: Path) -> None:
    method, model = prepared(tmp_path)
    taken(method, model, 0, size=3)
    numbers = priorities(SEED, NUMBER, 0, 8)
    _, states = by_hand(toy.model(), rows(0))
    targets = rows(0).targets.split(rows(0).positions.sum(1).tolist())
    for kept, place in zip(method.rehearsal.reservoir.rows, np.argsort(numbers), strict=True):
        assert kept.priority == numbers[place]
        assert torch.equal(kept.inputs, rows(0).input_ids[place].int())
        assert torch.equal(kept.targets, targets[place].int())
        torch.testing.assert_close(kept.states.float(), states[place].detach(), rtol=1e-2, atol=1e-2)
    assert method.report() == {"kept_rows": 8.0}


def test_the_next_domain_gets_the_reservoir(tmp_path: Path) -> None:
    method, model = prepared(tmp_path)
    method.carry(tmp_path)
    assert not list(tmp_path.iterdir())  # the reservoir is still empty
    taken(method, model, 0)
    method.carry(tmp_path)
    after, _ = prepared(tmp_path)
    assert [row.priority for row in after.rehearsal.reservoir.rows] == [
        row.priority for row in method.rehearsal.reservoir.rows
    ]
    assert torch.equal(after.rehearsal.reservoir.rows[2].states, method.rehearsal.reservoir.rows[2].states)


def test_replayed_rows_of_another_length_are_refused(tmp_path: Path) -> None:
    """A later job may continue with the reservoir of a job with other rows."""
    method, model = prepared(tmp_path)
    taken(method, model, 0)
    shorter = {name: rows[:, :8] if rows.ndim == 2 else rows for name, rows in toy.columns(1).items()}
    seen = toy.Objective().corrupt(Batch.of({**shorter, "lengths": shorter["lengths"].clip(max=8)}))
    with pytest.raises(ConfigError, match=r"replays rows of 12 tokens .*, but the rows of this run have 8") as refused:
        list(method.losses(model, [seen], toy.Objective(), 1, len(seen.targets)))
    assert "set training.sequence_length to 12" in refused.value.fix


@pytest.mark.parametrize(
    ("training", "field"),
    [
        (TrainingConfig(length_ramp=[(1000, 64)]), r"training\.length_ramp"),
        (TrainingConfig(phases=[PhaseConfig(steps=1), PhaseConfig(sequence_length=64)]), "sequence_length in training"),
        (TrainingConfig(sequence_length=64, phases=[PhaseConfig(steps=1), PhaseConfig(sequence_length=64)]), ""),
        (TrainingConfig(batch_ramp=[(1000, 64)]), ""),
    ],
)
def test_rows_that_change_their_length_are_refused(training: TrainingConfig, field: str) -> None:
    method, config = Derpp(DerppOptions()), Config(training=training)
    if not field:
        method.check(config, Path("unused"))
        return
    with pytest.raises(ConfigError, match=f"^{field}.* changes the length of the rows"):
        method.check(config, Path("unused"))


def test_a_trial_of_the_memory_use_stores_no_rows(tmp_path: Path) -> None:
    method = Derpp(DerppOptions())
    model = method.prepare_model(toy.model(), Setting())
    taken(method, model, 0)
    assert method.rehearsal.reservoir.rows == []


def test_added_passes_and_memory() -> None:
    method = Derpp(DerppOptions(buffer_mib=2, fraction=0.5))
    assert method.added_passes() == Added(trained=0.5)
    assert method.added_memory(ROBERTA).held == 2 * 2**20
