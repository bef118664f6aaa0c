"""Tests L2-SP in the training loop on one and two ranks at all ZeRO stages: gradients, and resuming."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from adapt.config import Config, ResourcesConfig
from adapt.method.base import AddedMemory, Method, Setting
from adapt.method.l2sp import L2sp, L2spOptions
from adapt.objective.objective import Batch
from adapt.train.capacity.memory import Demand, estimate
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from tests.train.capacity.test_memory import ROBERTA
from tests.train.toy import GLOBAL_BATCH, Case, Objective, columns, feed, model, moments, rate, settings

STAGES = 3, 0, 1, 2
STRONG = L2spOptions(alpha=3.0)
BOTH = L2spOptions(alpha=2.0, beta=1.5)
START, BASE = Path("start"), Path("base")
has_bf16 = torch.cpu.get_capabilities().get("avx512_bf16", False)


class Outcome(NamedTuple):
    """Results of a training run. Only rank 0 has the weights."""

    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Gradients of the first step, computed from AdamW's first moments."""
    norms: list[float]
    report: dict[str, float]


def other(folder: Path) -> nn.Module:
    """Returns the model of a folder: for BASE, a model with other weights, else the toy model itself."""
    toy = model()
    if folder == BASE:
        with torch.no_grad():
            for number, parameter in enumerate(toy.parameters()):
                parameter += 0.01 * (number % 5 - 2)
    return toy


def train(runs: list[tuple[Case, L2spOptions | None]]) -> list[Outcome]:
    """Trains several runs one after another on the calling rank."""
    return [_train(*run) for run in runs]


def _train(case: Case, options: L2spOptions | None) -> Outcome:
    method = L2sp(options) if options else Method()
    world, training = dist.get_world_size(), settings(**case.training)
    setting = Setting(anchor=START, base=BASE, zero_stage=case.zero_stage, world=world, load=other)
    toy = method.prepare_model(model(case.dropout), setting)
    passes = GLOBAL_BATCH // world // case.micro_batch
    engine = Engine(toy, training, case.zero_stage, case.precision, case.micro_batch, passes, case.offload)
    method.begin(engine)
    loop = Loop(engine, Objective(), method, training, case.micro_batch, case.steps, seed=5)
    first = engine.load(case.load)["step"] if case.load else 0
    norms, gradients = [], {}
    for step, share in enumerate(feed(first, case.steps), first):
        norms.append(loop.step(share, step, rate(step))[2])
        gradients = gradients or {name: mean / (1 - 0.9) for name, (mean, _) in moments(engine).items()}
        if case.is_saved(step + 1):
            engine.save(case.save, {"step": step + 1})
    return Outcome(engine.full_state(), gradients, norms, method.report())


def reference(options: L2spOptions, steps: int) -> Outcome:
    """Trains the expected result in plain torch, with the gradient of loss plus penalty from autograd."""
    toy, training, masking = model(), settings(), Objective()
    named = dict(toy.named_parameters())
    start = {name: each.detach().clone() for name, each in named.items()}
    base = dict(other(BASE).named_parameters())
    adamw = torch.optim.AdamW(
        [{"params": [p], "weight_decay": training.weight_decay if p.ndim > 1 else 0.0} for p in named.values()],
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        foreach=False,
    )
    norms, penalty = [], torch.zeros(())
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        seen = masking.corrupt(Batch.of(columns(step)))
        logits = toy(input_ids=seen.input_ids, attention_mask=seen.real).logits[seen.positions]
        penalty = torch.stack(list(_penalties(options, named, start, base))).sum()
        toy.zero_grad()
        (nn.functional.cross_entropy(logits, seen.targets) + penalty).backward()
        norm = nn.utils.clip_grad_norm_(named.values(), training.max_gradient_norm)
        gradients = gradients or {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        norms.append(norm.item())
    weights = {name: each.detach() for name, each in named.items()}
    return Outcome(weights, gradients, norms, {"penalty": penalty.item()})


def _penalties(options: L2spOptions, now: Any, start: Any, base: Any) -> Iterator[Tensor]:
    for name, weight in now.items():
        yield options.alpha / 2 * (weight - start[name]).square().sum()
        yield options.beta / 2 * (weight - base[name].detach()).square().sum()


def assert_close(found: Outcome, expected: Outcome) -> None:
    """Checks that two outcomes agree within fp32 rounding. A resumed run is compared on its own steps only."""
    for name, weight in expected.weights.items():
        # softmax ignores key biases, so their gradient is only rounding error, which AdamW turns into a full step
        atol = 5e-3 if name.endswith("key.bias") else 2e-5
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(found.norms, expected.norms[-len(found.norms) :], rtol=1e-4, atol=0)
    assert found.report["penalty"] == pytest.approx(expected.report["penalty"], rel=1e-4)


@pytest.mark.parametrize("options", [STRONG, BOTH])
@pytest.mark.parametrize("world", [1, 2])
def test_steps_equal_those_of_plain_torch(ranks: Any, world: int, options: L2spOptions) -> None:
    """Checks weights, penalty and norms. Gradients are clipped by the norm of loss plus penalty."""
    expected = reference(options, 4)
    for found in ranks(world).run(train, [(Case(stage), options) for stage in STAGES])[0]:
        assert_close(found, expected)
    plain = reference(L2spOptions(alpha=0.0), 4)
    assert any(not torch.allclose(plain.weights[name], each, atol=1e-3) for name, each in expected.weights.items())


@pytest.mark.parametrize("world", [1, 2])
def test_the_gradient_is_the_strength_times_the_distance(ranks: Any, world: int) -> None:
    """Checks the first step. The weights are still at their start, so the penalty's gradient is beta (w - w_base)."""
    free = {"max_gradient_norm": 0.0}
    cases = [Case(stage, steps=1, training=free) for stage in STAGES]
    runs = [(case, options) for case in cases for options in (None, BOTH)]
    found = ranks(world).run(train, runs)[0]
    start, base = dict(model().named_parameters()), dict(other(BASE).named_parameters())
    for plain, pulled in zip(found[::2], found[1::2], strict=True):
        for name, gradient in plain.gradients.items():
            expected = gradient + BOTH.beta * (start[name] - base[name]).detach()
            torch.testing.assert_close(pulled.gradients[name], expected, rtol=1e-4, atol=1e-5)


def test_without_strength_it_is_exactly_plain_training(ranks: Any) -> None:
    cases = [Case(stage, dropout=0.1, precision=precision) for stage in STAGES for precision in ("fp32", "fp16")]
    runs = [(case, options) for case in cases for options in (None, L2spOptions(alpha=0.0))]
    found = ranks(2).run(train, runs)[0]  # type: ignore[arg-type]
    for plain, nothing in zip(found[::2], found[1::2], strict=True):
        assert nothing.norms == plain.norms
        assert all(torch.equal(nothing.weights[name], each) for name, each in plain.weights.items())


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.skipif(not has_bf16, reason=""))])
def test_low_precision_affects_passes_but_not_the_pull(ranks: Any, precision: Any) -> None:
    expected = reference(BOTH, 2)
    cases = [(Case(stage, steps=2, precision=precision), BOTH) for stage in STAGES]
    for found in ranks(2).run(train, cases)[0]:
        assert found.report["penalty"] == pytest.approx(expected.report["penalty"], rel=0.05)
        torch.testing.assert_close(found.norms, expected.norms, rtol=0.05, atol=0)


def test_an_offloaded_optimizer_is_clipped_by_the_same_norm(ranks: Any) -> None:
    expected = reference(STRONG, 4)
    for found in ranks(2).run(train, [(Case(stage, offload="optimizer"), STRONG) for stage in (3, 2)])[0]:
        assert_close(found, expected)


def test_it_resumes_exactly(ranks: Any, tmp_path: Path) -> None:
    """Checks that a resumed run is exactly equal. Its weights are still pulled to the start of the whole training."""
    runs = [Case(stage, dropout=0.1) for stage in STAGES]
    folders = [tmp_path / str(number) for number, _ in enumerate(runs)]
    for folder in folders:
        folder.mkdir()
    pairs = list(zip(runs, folders, strict=True))
    cases = [replace(run, save=folder, save_after=2) for run, folder in pairs]
    cases += [replace(run, load=folder) for run, folder in pairs]
    found = ranks(2).run(train, [(case, BOTH) for case in cases])[0]
    for rest, whole in zip(found[4:], found[:4], strict=True):
        assert rest.weights.keys() == whole.weights.keys()
        assert all(torch.equal(rest.weights[name], each) for name, each in whole.weights.items())
        assert rest.report == whole.report


@pytest.mark.parametrize(("before", "after"), [((2, 2), (1, 3)), ((1, 0), (2, 1)), ((2, 3), (1, 0))])
def test_it_resumes_on_other_ranks_and_at_another_stage(ranks: Any, tmp_path: Path, before: Any, after: Any) -> None:
    ranks(before[0]).run(train, [(Case(before[1], steps=2, save=tmp_path), BOTH)])
    (resumed,) = ranks(after[0]).run(train, [(Case(after[1], load=tmp_path), BOTH)])[0]
    assert_close(resumed, reference(BOTH, 4))


def test_its_copies_are_divided_like_the_optimizers_state() -> None:
    one, both = L2sp(L2spOptions()), L2sp(BOTH)
    assert one.added_memory(ROBERTA, shared_by=4) == AddedMemory(held=ROBERTA.parameters)
    config = Config(resources=ResourcesConfig(workers=4, zero_stage=3))
    memory = estimate(ROBERTA, replace(Demand.of(config, 1, "fp32", True), method=both))
    assert memory.method == 2 * ROBERTA.parameters
    alone = replace(config, resources=ResourcesConfig(workers=4))
    assert estimate(ROBERTA, replace(Demand.of(alone, 1, "fp32", True), method=one)).method == 4 * ROBERTA.parameters


def test_its_options_enter_the_key_of_a_training() -> None:
    assert L2sp(L2spOptions(alpha=0.5)).what() == {"kind": "l2sp", "alpha": 0.5, "beta": 0.0}
    assert Method().what() == {"kind": "plain"}
