"""Trains the toy model with any method in the real loop, for tests that apply to all methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adapt.method.base import Method, Setting
from adapt.method.table import METHODS
from adapt.model.additions.exbert import EXBERT, attach_exbert, draw_exbert
from adapt.model.additions.table import with_addition
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from tests.train.toy import GLOBAL_BATCH, Case, Objective, feed, model, rate, settings, with_room

START, BEFORE = Path("start"), Path("before")
STATE = "method.pt"
FIRST_NEW = 50


@dataclass(frozen=True)
class Trained:
    """Describes a training run of the toy model with a method."""

    case: Case
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    past: Mapping[str, Path] = field(default_factory=dict)
    anchor: Path = START
    is_second: bool = False
    """Whether the model has already learnt a domain with the same method."""
    has_module: bool = False
    """Whether the model has exBERT's module, whose new tokens start at FIRST_NEW."""
    room: int = 0
    """Number of positions of the model beyond the row length, which prompts can use."""


class Outcome(NamedTuple):
    """Results of a training run. Only rank 0 has the weights."""

    weights: dict[str, Tensor]
    """Weights that the method exports, keyed by parameter name."""
    norms: list[float]
    report: dict[str, float]


def loaded(folder: Path) -> nn.Module:
    """Returns the toy model for any folder. For the folder BEFORE, random noise is added to its weights."""
    toy = model().eval()
    if folder == BEFORE:
        draw = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in toy.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
    return toy


def begun(dropout: float = 0.0, has_module: bool = False) -> nn.Module:
    """Returns the toy model, optionally with an exBERT module of one head and 7 neurons."""
    toy = model(dropout)
    if has_module:
        options = {"heads": 1, "inner": 7, "first_new": FIRST_NEW}
        with_addition(toy.config, EXBERT, **options)
        attach_exbert(toy, **options)
        draw_exbert(toy, 1)
    return toy


def train_all(runs: list[Trained]) -> list[Outcome]:
    """Trains several runs one after another on the calling rank."""
    return [_train(run) for run in runs]


def prepared(run: Trained, world: int = 1) -> tuple[Method, Any]:
    """Returns the method of a run and the prepared model, which no engine has wrapped yet."""
    chosen, case = METHODS.load(run.kind), run.case
    method = chosen(chosen.Options(**run.options) if chosen.Options else None)
    setting = Setting(
        length=case.steps if method.depends_on_length else None,
        past=run.past,
        anchor=run.anchor,
        base=BEFORE,
        zero_stage=case.zero_stage,
        world=world,
        load=loaded,
    )
    toy: Any = (
        with_room(begun(case.dropout, run.has_module), run.room) if run.room else begun(case.dropout, run.has_module)
    )
    if run.is_second:
        first = chosen(chosen.Options(**run.options) if chosen.Options else None)
        toy = first.prepare_model(toy.eval(), replace(setting, domain="before", number=1))
        draw = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for name, parameter in toy.named_parameters():
                learnt = torch.randn(parameter.shape, generator=draw)
                if parameter.requires_grad:
                    parameter.copy_(learnt if name.endswith("embedding") else parameter + 0.1 * learnt)
        setting = replace(setting, domain="now", number=2)
    return method, method.prepare_model(toy, setting).train()


def _train(run: Trained) -> Outcome:
    case = run.case
    method, toy = prepared(run, dist.get_world_size())
    world, training = dist.get_world_size(), settings(**case.training)
    passes = GLOBAL_BATCH // world // case.micro_batch
    engine = Engine(toy, training, case.zero_stage, case.precision, case.micro_batch, passes, case.offload)
    method.begin(engine)
    loop = Loop(engine, Objective(), method, training, case.micro_batch, case.steps, seed=5)
    first = 0
    if case.load:
        first = engine.load(case.load)["step"]
        method.load_state(torch.load(case.load / STATE, weights_only=True))
    norms = []
    for step, share in enumerate(feed(first, case.steps), first):
        norms.append(loop.step(share, step, rate(step))[2])
        if case.is_saved(step + 1):
            _save(case.save, step + 1, engine, method)
    return Outcome(method.merge(engine.full_state()), norms, method.report())


def _save(folder: Path | None, step: int, engine: Engine, method: Method) -> None:
    assert folder
    engine.save(folder, {"step": step})
    if dist.get_rank() == 0:
        torch.save(method.state(), folder / STATE)
    dist.barrier()


def assert_close(found: Outcome, expected: Outcome, rtol: float = 1e-4) -> None:
    """Checks that two outcomes agree within fp32 rounding. A resumed run is compared on the norms of its own steps."""
    assert found.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        # softmax ignores key biases, so their gradient is only rounding error, which AdamW turns into a full step
        atol = 5e-3 if name.endswith("key.bias") else 2e-5
        torch.testing.assert_close(found.weights[name], weight, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(found.norms, expected.norms[-len(found.norms) :], rtol=rtol, atol=0)
    assert found.report.keys() == expected.report.keys()
    for name, value in expected.report.items():
        torch.testing.assert_close(found.report[name], value, rtol=10 * rtol, atol=1e-6)


def assert_equal(found: Outcome, expected: Outcome) -> None:
    """Checks that two outcomes are exactly equal. A resumed run is compared on the norms of its own steps."""
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(found.weights[name], each) for name, each in expected.weights.items())
    assert found.norms == expected.norms[-len(found.norms) :]
