"""Tests that the loop restores the weights of the best epoch and takes AdamW steps at the scheduled learning rates."""

import numpy as np
import pytest
import torch
from torch import nn

from adapt.config import FinetuneConfig
from adapt.finetune.finetune_loop import FinetuneSettings, History, LoopInput, train

INPUTS = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
TARGETS = torch.from_numpy(np.random.default_rng(1).normal(size=(20, 1)).astype(np.float32))


def run(
    scores: list[float], patience: int | None = 3, rate: float = 0.1, at_once: int | None = None
) -> tuple[nn.Linear, list[torch.Tensor], History]:
    torch.manual_seed(0)
    module, seen = nn.Linear(4, 1), []

    def dev_score() -> float:
        assert not module.training
        seen.append(module.weight.detach().clone())
        return scores[len(seen) - 1]

    def loss(chosen: np.ndarray) -> torch.Tensor:
        assert module.training
        assert len(chosen) <= min(at_once or 8, 8)
        return nn.functional.mse_loss(module(INPUTS[chosen]), TARGETS[chosen])

    finetune = FinetuneConfig(
        batch_size=8, micro_batch=at_once, learning_rate=rate, patience=patience, warmup_fraction=0.2
    )
    settings = FinetuneSettings(finetune, epochs=len(scores), pooling="first", max_length=1)
    return module, seen, train(LoopInput(module, loss, dev_score, np.ones(len(INPUTS))), settings, seed=5)


@pytest.mark.parametrize(
    ("scores", "ran", "best"),
    [
        ([0.1, 0.5, 0.4, 0.5, 0.3, 0.9], 5, 2),  # an equal score is not an improvement
        ([0.1, 0.2, 0.3, 0.4], 4, 4),
        ([0.0, 0.0, 0.0, 0.0], 4, 1),
    ],
)
def test_the_weights_of_the_best_epoch_are_restored(scores: list[float], ran: int, best: int) -> None:
    module, seen, history = run(scores)
    assert (len(history.curve), history.best_epoch) == (ran, best)
    assert history.best == scores[best - 1]
    assert torch.equal(module.weight, seen[best - 1])
    assert not torch.equal(seen[0], seen[-1])
    assert not module.training


def test_without_patience_all_epochs_are_trained() -> None:
    _, _, history = run([0.1, 0.1, 0.1, 0.1, 0.1, 0.2], patience=None)
    assert (len(history.curve), history.best_epoch) == (6, 6)


@pytest.mark.parametrize("at_once", [None, 1, 3, 8, 100])
def test_the_loop_equals_plain_adamw(at_once: int | None) -> None:
    module, _, history = run([0.1, 0.2], at_once=at_once)
    torch.manual_seed(0)
    plain = nn.Linear(4, 1)
    groups = [{"params": [plain.weight], "weight_decay": 0.01}, {"params": [plain.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6)
    # There are 3 steps per epoch and 6 in total. The warm-up takes ceil(1.2) = 2 steps.
    # Then the rate falls linearly and would reach 0 after step 6.
    rates, step = [0.05, 0.1, 0.1, 0.075, 0.05, 0.025], 0
    for epoch in range(2):
        order, losses = np.random.default_rng([5, epoch]).permutation(20), []
        for chosen in (order[:8], order[8:16], order[16:]):
            for group in optimizer.param_groups:
                group["lr"] = rates[step]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(plain(INPUTS[chosen]), TARGETS[chosen])
            loss.backward()
            norm = torch.cat([p.grad.flatten() for p in plain.parameters()]).norm()
            for p in plain.parameters():
                p.grad *= (1 / (norm + 1e-6)).clamp(max=1)
            optimizer.step()
            losses.append(loss.item())
            step += 1
        assert history.curve[epoch]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    torch.testing.assert_close(module.weight, plain.weight)
    torch.testing.assert_close(module.bias, plain.bias)
