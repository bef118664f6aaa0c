"""Tests soft masks in training loops at every ZeRO stage, on one and two ranks, with clipping and resuming."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from adapt.config import TrainingConfig
from adapt.method.base import Method, Setting
from adapt.model.layers import ones
from adapt.model.masked_updates import Target
from adapt.objective.objective import Batch
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from adapt.train.model_options import apply_options
from tests.method.das.soft_mask import SoftMask
from tests.method.das.test_importance import keep_of, masked, moved
from tests.train.toy import GLOBAL_BATCH, VOCABULARY, Case, Objective, columns, feed, model, rate, settings

# ZeRO stage 3 runs first. It replaces torch's `linear`, and all runs after it then have the same rounding errors.
STAGES = 3, 0, 1, 2
PRECISIONS = "fp32", "bf16", "fp16"
has_bf16 = torch.cpu.get_capabilities().get("avx512_bf16", False)


@dataclass(frozen=True)
class Masked:
    """Describes a training run with masks, or without the method."""

    case: Case
    target: Target = "update"
    importance: str = "some"
    """Importance of units: `some` is random in [0, 1], `none` is all 0, `all` is all 1, `plain` has no masks."""


class Outcome(NamedTuple):
    """Results of a training run. Only rank 0 has the weights."""

    trained: dict[str, Tensor]
    """Parameters V that the optimizer updates."""
    weights: dict[str, Tensor]
    """Exported weights W, after the masks are applied."""
    norms: list[float]
    losses: list[float]


def method_for(toy: Any, run: Masked) -> Method:
    if run.importance == "plain":
        return Method()
    if run.importance == "some":
        return masked(toy, run.target)
    value = float(run.importance == "all")
    values = {kind: torch.full_like(each, value) for kind, each in ones(toy).items()}
    method = SoftMask(values, run.target, torch.full((VOCABULARY,), value))
    method.prepare_model(toy, Setting())
    return method


def train(runs: list[Masked]) -> list[Outcome]:
    """Trains several runs one after another on the calling rank."""
    return [_train(run) for run in runs]


def _train(run: Masked) -> Outcome:
    case = run.case
    toy, training = model(case.dropout), settings(**case.training)
    method = method_for(toy, run)
    apply_options(toy, training, torch.device("cpu"))
    passes = GLOBAL_BATCH // dist.get_world_size() // case.micro_batch
    engine = Engine(toy, training, case.zero_stage, case.precision, case.micro_batch, passes, case.offload)
    loop = Loop(engine, Objective(), method, training, case.micro_batch, case.steps, seed=5)
    first = engine.load(case.load)["step"] if case.load else 0
    norms, losses = [], []
    for step, share in enumerate(feed(first, case.steps), first):
        loss, _, norm = loop.step(share, step, rate(step))
        dist.all_reduce(loss)
        norms.append(norm)
        losses.append(loss.item())
        if case.is_saved(step + 1):
            engine.save(case.save, {"step": step + 1})
    state = engine.full_state()
    return Outcome(state, method.merge(dict(state)), norms, losses)


def reference(case: Case, target: Target = "update") -> Outcome:
    """Trains the expected result in plain torch.

    With target `update`, AdamW updates parameters V and the model computes with W0 + keep (V - W0). With target
    `gradient`, the gradients are multiplied by keep.
    """
    toy, training, masking = model(), settings(**case.training), Objective()
    keep = keep_of(toy)
    start = {name: each.detach().clone() for name, each in toy.named_parameters()}
    values = {name: nn.Parameter(each.clone()) for name, each in start.items()}
    scale = keep if target == "update" else dict.fromkeys(keep, 1.0)
    adamw = torch.optim.AdamW(
        [{"params": [v], "weight_decay": training.weight_decay if v.ndim > 1 else 0.0} for v in values.values()],
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        foreach=False,
    )
    norms, losses = [], []

    @torch.no_grad()
    def weights() -> dict[str, Tensor]:
        return {name: start[name] + scale[name] * (value - start[name]) for name, value in values.items()}

    for step in range(case.steps):
        toy.load_state_dict(weights(), strict=False)
        seen = masking.corrupt(Batch.of(columns(step)))
        logits = toy(input_ids=seen.input_ids, attention_mask=seen.real).logits[seen.positions]
        loss = nn.functional.cross_entropy(logits, seen.targets)
        toy.zero_grad()
        loss.backward()
        for name, parameter in toy.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            values[name].grad = gradient if target == "update" else gradient * keep[name]
        norm = torch.cat([value.grad.flatten() for value in values.values()]).norm()
        for value in values.values():
            value.grad = value.grad * min(1.0, training.max_gradient_norm / norm)
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        norms.append(norm.item())
        losses.append(loss.item())
    return Outcome({name: each.detach() for name, each in values.items()}, weights(), norms, losses)


def assert_close(found: Outcome, expected: Outcome) -> None:
    """Checks that two outcomes agree within fp32 rounding. A resumed run is compared on its own steps only."""
    for mine, theirs in ((found.trained, expected.trained), (found.weights, expected.weights)):
        for name, each in theirs.items():  # tests.train.toy.assert_close says why key biases have another tolerance
            atol = 3e-5 if name.endswith("key.bias") else 1e-5
            torch.testing.assert_close(mine[name], each, rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(found.norms, expected.norms[-len(found.norms) :], rtol=1e-4, atol=0)
    torch.testing.assert_close(found.losses, expected.losses[-len(found.losses) :], rtol=1e-5, atol=0)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, each in found.items() if not torch.equal(each, expected[name])] == []


@pytest.mark.parametrize(("world", "target"), [(1, "update"), (2, "update"), (2, "gradient")])
def test_steps_equal_those_of_plain_torch(ranks: Any, world: int, target: Target) -> None:
    """Compares weights, losses and clipping with plain torch.

    Clipping uses the norm of the unmasked gradient with target `update`, and of the masked gradient with `gradient`.
    """
    expected = reference(Case(), target)
    # every norm is above the limit, so every step was clipped
    assert min(expected.norms) > settings().max_gradient_norm
    for outcome in ranks(world).run(train, [Masked(Case(stage), target) for stage in STAGES])[0]:
        assert_close(outcome, expected)
        tied = outcome.weights["cls.predictions.decoder.weight"]
        assert torch.equal(tied, outcome.weights["bert.embeddings.word_embeddings.weight"])


@pytest.mark.parametrize(
    ("precision", "world"), [("fp32", 1), *((p, 2) for p in PRECISIONS if p != "bf16" or has_bf16)]
)
def test_the_first_step_is_the_unmasked_one_scaled(ranks: Any, precision: Any, world: int) -> None:
    """Checks that the optimizer's parameters V move as without masks, and that the weights W move (1 - I) times as far.

    With importance 0 everywhere, W must be exactly equal to the weights of plain training.
    """
    cases = [Case(stage, steps=1, precision=precision, dropout=0.1) for stage in STAGES]
    some, none, plain = (
        ranks(world).run(train, [Masked(case, importance=importance) for case in cases])[0]
        for importance in ("some", "none", "plain")
    )
    start, keep = dict(model().named_parameters()), keep_of(model())
    for masked_run, unmasked_run, expected in zip(some, none, plain, strict=True):
        assert not torch.equal(expected.trained["cls.predictions.bias"], start["cls.predictions.bias"])
        assert masked_run[2:] == unmasked_run[2:] == expected[2:]  # the norms and losses are equal
        assert_same(masked_run.trained, expected.trained)
        assert_same(unmasked_run.weights, expected.weights)
        for name, each in start.items():
            scaled = each + keep[name] * (expected.weights[name] - each)
            torch.testing.assert_close(masked_run.weights[name], scaled, rtol=1e-6, atol=1e-7)
            free = (keep[name] == 1).expand_as(each)
            assert torch.equal(masked_run.weights[name][free], expected.weights[name][free])


@pytest.mark.parametrize("world", [1, 2])
def test_fully_important_parameters_do_not_move_and_others_do(ranks: Any, world: int) -> None:
    start, protected = model().state_dict(), {name for name, keep in keep_of(model()).items() if keep.ndim}
    for outcome in ranks(world).run(train, [Masked(Case(stage), importance="all") for stage in STAGES])[0]:
        unmoved = {name for name, each in outcome.weights.items() if torch.equal(each, start[name])}
        assert unmoved == {*protected, "cls.predictions.decoder.weight"}


def test_it_resumes_exactly(ranks: Any, tmp_path: Path) -> None:
    runs = [Masked(Case(stage, dropout=0.1)) for stage in STAGES]
    folders = [tmp_path / str(number) for number, _ in enumerate(runs)]
    for folder in folders:
        folder.mkdir()
    pairs = list(zip(runs, folders, strict=True))
    wholes = [replace(run, case=replace(run.case, save=folder, save_after=2)) for run, folder in pairs]
    rests = [replace(run, case=replace(run.case, load=folder)) for run, folder in pairs]
    found = ranks(2).run(train, [*wholes, *rests])[0]
    for rest, whole in zip(found[len(runs) :], found[: len(runs)], strict=True):
        assert_same(rest.trained, whole.trained)
        assert_same(rest.weights, whole.weights)
        assert rest.losses == whole.losses[2:]


@pytest.mark.parametrize(("before", "after"), [((2, 2), (1, 3)), ((1, 0), (2, 1)), ((2, 3), (1, 0)), ((1, 3), (2, 2))])
def test_it_resumes_on_other_ranks_and_at_another_stage(ranks: Any, tmp_path: Path, before: Any, after: Any) -> None:
    ranks(before[0]).run(train, [Masked(Case(before[1], steps=2, save=tmp_path))])
    (resumed,) = ranks(after[0]).run(train, [Masked(Case(after[1], load=tmp_path))])[0]
    assert_close(resumed, reference(Case()))


@pytest.mark.parametrize(
    "options",
    [
        {"training": {"optimizer": "stable_adamw"}},
        {"training": {"gradient_checkpointing": True}},
        {"offload": "optimizer"},
    ],
)
def test_masks_work_with_other_options(ranks: Any, options: dict[str, Any]) -> None:
    """Combines masks with other options: after one step, the optimizer's parameters must equal those without masks."""
    case = Case(steps=1, **options)
    runs = [Masked(replace(case, zero_stage=stage), importance=i) for stage in (3, 2) for i in ("some", "plain")]
    found = ranks(2).run(train, runs)[0]
    for outcome, plain in zip(found[::2], found[1::2], strict=True):
        assert_same(outcome.trained, plain.trained)


def loss_and_gradients(training: TrainingConfig, target: Target) -> tuple[float, dict[str, Tensor]]:
    toy = model()
    masked(toy, target)
    moved(toy)
    apply_options(toy, training, torch.device("cpu"))
    loss = Objective().loss(toy, Objective().corrupt(Batch.of(columns(0))))
    loss.backward()
    return loss.item(), {name: each.grad for name, each in toy.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("target", ["update", "gradient"])
@pytest.mark.parametrize("option", ["gradient_checkpointing", pytest.param("compile", marks=pytest.mark.slow)])
def test_masked_layers_can_be_compiled_and_checkpointed(option: str, target: Target) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss, expected = loss_and_gradients(TrainingConfig(), target)
    again, found = loss_and_gradients(TrainingConfig(**{option: True}), target)
    assert again == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if option == "compile":
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
        assert not [reason for reason in torch._dynamo.utils.counters["graph_break"] if "Function" in reason]
