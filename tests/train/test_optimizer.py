"""Tests which parameters decay, and compares AdamW with update clipping to the algorithm in the paper."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from adapt.config import TrainingConfig
from adapt.train.engine import Engine
from adapt.train.optimizer import StableAdamW, build_optimizer
from tests.train.toy import Case, assert_close, build, feed, model, rate, reference, settings, train


def decays(network: nn.Module, **settings) -> dict[str, float]:
    """Returns the weight decay of each trainable parameter, keyed by its name."""
    optimizer = build_optimizer(network, TrainingConfig(weight_decay=0.1, **settings))
    by_parameter = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    return {name: by_parameter[p] for name, p in network.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", ["adamw", "stable_adamw"])
def test_matrices_decay_and_biases_and_norms_do_not(kind):
    for name, decay in decays(model(), optimizer=kind).items():
        assert decay == (0 if "bias" in name or "LayerNorm" in name else 0.1), name


def test_frozen_parameters_are_not_in_the_optimizer():
    network = model(frozen="embeddings")
    assert len(decays(network)) == sum(p.requires_grad for p in network.parameters())


class Paper(torch.optim.Optimizer):
    """Implements Algorithm 2 of arXiv 2304.13013 line by line, with bias-corrected betas instead of averages."""

    def __init__(self, groups, betas, eps, foreach):
        super().__init__(groups, {"lr": 0.0})
        self.betas, self.eps, self.count = betas, eps, 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        beta1, beta2 = (beta * (1 - beta ** (self.count - 1)) / (1 - beta**self.count) for beta in self.betas)
        for group in self.param_groups:
            (theta,) = group["params"]
            g, state = theta.grad, self.state[theta]
            v = beta1 * state.get("v", torch.zeros_like(g)) + (1 - beta1) * g
            u = beta2 * state.get("u", torch.zeros_like(g)) + (1 - beta2) * g**2
            rms = (g**2 / u.clamp(min=self.eps**2)).mean().sqrt()
            rate = group["lr"] / max(1.0, rms.item())
            theta -= rate * group["weight_decay"] * theta + rate * v / (u.sqrt() + self.eps)
            # converts the averages to AdamW's uncorrected averages, for comparison
            correction = (1 - beta**self.count for beta in self.betas)
            state |= {"v": v, "u": u, "rms": rms.item()}
            state["exp_avg"], state["exp_avg_sq"] = (each * by for each, by in zip((v, u), correction, strict=True))


STABLE = {"optimizer": "stable_adamw", "beta2": 0.6, "max_gradient_norm": 0.0}


def test_stable_adamw_matches_the_paper_and_clips():
    """Updates are clipped for gradients that grow tenfold per step, but not for gradients of constant size."""
    torch.manual_seed(0)
    grown, steady = (nn.Parameter(torch.randn(5, 7)) for _ in range(2))
    twins = [nn.Parameter(p.detach().clone()) for p in (grown, steady)]
    ours = StableAdamW(
        [{"params": [p], "weight_decay": 0.1} for p in (grown, steady)],
        sharded=False,
        lr=0.1,
        betas=(0.9, 0.98),
        eps=1e-6,
        fused=True,
    )
    papers = Paper([{"params": [p], "weight_decay": 0.1} for p in twins], (0.9, 0.98), 1e-6, False)
    for step in range(6):
        for parameter, twin, size in zip((grown, steady), twins, (10**step, 1), strict=True):
            parameter.grad = torch.randn(5, 7).sign() * size
            twin.grad = parameter.grad.clone()
        for optimizer in (ours, papers):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)
            optimizer.step()
        torch.testing.assert_close([grown, steady], twins, rtol=1e-5, atol=1e-6)
        assert [group["lr"] for group in ours.param_groups] == [0.1 / (1 + step)] * 2
    assert papers.state[twins[0]]["rms"] > 2
    assert papers.state[twins[1]]["rms"] == pytest.approx(1)


GROUPED = {"embedding_rate": 0.5, "layer_decay": 0.6}


@pytest.mark.parametrize("optimizer", ["adamw", "stable_adamw"])
def test_embeddings_and_lower_layers_train_at_their_share_of_the_rate(ranks, optimizer):
    """The upper of two layers trains at the full rate, and the lower layer at 0.6 of the rate.

    Embeddings train at 0.5 * 0.6^2 of the rate.
    """
    factors = {}
    for name, _ in model().named_parameters():
        if "_embeddings.weight" in name:
            factors[name] = 0.5 * 0.6**2
        elif "layer.0." in name:
            factors[name] = 0.6
    assert len(factors) > 10
    given = {**GROUPED, **(STABLE if optimizer == "stable_adamw" else {})}
    expected = reference(
        Case(training=given), optimizer=Paper if optimizer == "stable_adamw" else torch.optim.AdamW, factors=factors
    )
    for outcome in ranks(2).run(train_all, [Case(stage, training=given) for stage in range(4)])[0]:
        assert_close(outcome, expected)


class HeadFirst(NamedTuple):
    """Weights at the start, after the first and after the second step. The first step trains only the head."""

    start: dict[str, torch.Tensor]
    one: dict[str, torch.Tensor]
    two: dict[str, torch.Tensor]


def head_first(cases: list[Case]) -> list[HeadFirst]:
    found = []
    for case in cases:
        loop = replace(build(case), head_warmup=1)
        network, training = model(), settings(**case.training)
        loop = replace(loop, engine=Engine(network, training, case.zero_stage, "fp32", 2, 2, splits_head=True))
        weights = [loop.engine.full_state()]
        for number, share in enumerate(feed(0, 2)):
            loop.step(share, number, rate(number))
            weights.append(loop.engine.full_state())
        found.append(HeadFirst(*weights))
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "stable_adamw"])
def test_a_new_head_is_trained_alone_at_first(ranks, optimizer):
    """During head warm-up, weight decay does not change other parameters.

    The embedding that the head shares with the model counts as part of the model.
    """
    given = STABLE if optimizer == "stable_adamw" else {}
    for found in ranks(2).run(head_first, [Case(stage, training=given) for stage in range(4)])[0]:
        moved = {name for name, value in found.start.items() if not torch.equal(value, found.one[name])}
        assert moved
        assert all(name.startswith("cls.") or name == "unused" for name in moved)
        assert "cls.predictions.transform.dense.weight" in moved
        later = {name for name, value in found.one.items() if not torch.equal(value, found.two[name])}
        assert "bert.embeddings.word_embeddings.weight" in later


def test_rate_factors_are_kept_in_a_resumed_run_at_another_stage(ranks, tmp_path):
    first = Case(2, steps=4, training=GROUPED, save=tmp_path / "saved", save_after=2)
    whole = ranks(2).run(train, first)[0]
    for stage in (0, 3):
        resumed = ranks(2).run(train, Case(stage, steps=4, training=GROUPED, load=tmp_path / "saved"))[0]
        assert_close(resumed, whole, last=2)


def test_a_parameter_without_a_gradient_does_not_change():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = StableAdamW([{"params": [parameter], "weight_decay": 0.1}], sharded=False, lr=0.1, fused=True)
    optimizer.step()
    assert torch.equal(parameter, torch.ones(3))
    assert optimizer.param_groups[0]["params"] == [parameter]


def train_all(cases):
    """Trains several cases one after another, and returns their outcomes."""
    return [train(case) for case in cases]


@pytest.mark.parametrize("world", [1, 2])
def test_stable_adamw_is_exact_at_every_zero_stage(ranks, world):
    """The RMS is computed over whole parameters, although each rank holds only a part of them."""
    expected = reference(Case(training=STABLE), optimizer=Paper)
    assert_differs(expected, reference(Case(training={"beta2": 0.6, "max_gradient_norm": 0.0})))
    cases = [Case(stage, training=STABLE) for stage in range(4)]
    cases += [Case(2, offload="optimizer", training=STABLE), Case(3, offload="all", training=STABLE)]
    for outcome in ranks(world).run(train_all, cases)[0]:
        assert_close(outcome, expected)


def assert_differs(outcome, other):
    """Checks that clipping changed the weights of at least one parameter."""
    assert any(not torch.allclose(outcome.weights[name], other.weights[name], rtol=1e-3) for name in other.weights)


@pytest.mark.parametrize(("before", "after"), [((2, 0), (1, 2)), ((1, 1), (2, 3)), ((2, 3), (2, 0)), ((2, 3), (2, 3))])
def test_its_state_resumes_with_other_ranks_and_at_another_stage(ranks, tmp_path, before, after):
    (world, stage), (world_after, stage_after) = before, after
    ranks(world).run(train, Case(stage, steps=3, training=STABLE, save=tmp_path))
    resumed = ranks(world_after).run(train, Case(stage_after, steps=6, training=STABLE, load=tmp_path))[0]
    assert_close(resumed, reference(Case(steps=6, training=STABLE), optimizer=Paper), last=3)
