"""Tests that a training step reads a single number from a GPU, at the step's end. Until then, the host runs ahead.

Waits of DeepSpeed at ZeRO 1 to 3 are not counted. In its step, DeepSpeed waits for norms and for numbers that it
copies one by one. At stage 3, it also compares the order of parameters among ranks while it learns the order. At stage
0, DeepSpeed waits for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from adapt.config import ObjectiveConfig
from adapt.method.base import Method, Setting
from adapt.method.das.contrast import Disagreement
from adapt.method.das.criteria import MeasureSettings, gate_sizes
from adapt.method.das.method import DasOptions
from adapt.method.derpp.method import DerppOptions
from adapt.method.distill import Distill, DistillOptions
from adapt.method.domain_parameters import PrefixOptions, PromptOptions
from adapt.method.table import METHODS as ALL_METHODS
from adapt.method.weight_pulls import FISHER_FILE, EwcOptions, L2spOptions
from adapt.model.layers import KINDS as UNITS
from adapt.model.layers import Gates
from adapt.model.packing.isolation import keep_documents_apart
from adapt.objective.masking import make
from adapt.objective.objective import Batch
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from tests.method.das.test_training import saved
from tests.method.test_weight_pulls import ANCHOR, BASE, other
from tests.train import toy
from tests.train.pretended import Told, pretended

READ = "aten._local_scalar_dense.default"
STEPS = 2
KINDS = "mlm", "whole_word", "span", "entity", "causal"
METHODS: dict[str, Any] = {
    "plain": None,
    "l2sp": L2spOptions(alpha=2.0, beta=1.0),
    "ewc": EwcOptions(),
    "distill": DistillOptions(),
    "derpp": DerppOptions(),
    "distill of states": DistillOptions(of="states"),
    "demix": None,
    "prompt": PromptOptions(length=2),
    "prefix": PrefixOptions(length=3),
    "das lean": DasOptions(),
    "das exact": DasOptions(contrast_cost="exact"),
    "das economy": DasOptions(contrast_cost="economy", economy_fraction=0.4),
    "das general": DasOptions(contrast_text="general"),
    "das mask of gradients": DasOptions(soft_mask="gradient", contrast_weight=0.0),
}


@dataclass(frozen=True)
class Run:
    """Settings of a training run of two steps."""

    stage: int = 0
    micro_batch: int = 4
    method: str = "plain"
    objective: str = "mlm"
    past: dict[str, Path] = field(default_factory=dict)


def method_of(name: str) -> Method:
    return ALL_METHODS.load(name.split()[0])(METHODS[name])


def model_for(objective: str, room: int = 0) -> Any:
    """Returns a toy model with dropout and more positions than its rows need.

    For the objective `causal`, the model is a decoder.
    """
    if objective != "causal":
        return toy.with_room(toy.model(dropout=0.1), room) if room else toy.model(dropout=0.1)
    torch.manual_seed(0)
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=toy.VOCABULARY, n_embd=10, n_layer=2, n_head=2, n_positions=12))
    keep_documents_apart(decoder.eval())
    return decoder.train()


def watched(runs: Sequence[Run]) -> list[list[Told]]:
    """Returns the device events of each step, for each training run."""
    return [_watched(run) for run in runs]


def _watched(run: Run) -> list[Told]:
    method, seen = method_of(run.method), []
    setting = Setting(
        anchor=ANCHOR, base=BASE, past=run.past, first_general=3, zero_stage=run.stage, world=1, load=other
    )
    model = method.prepare_model(model_for(run.objective, 2 if run.method == "prompt" else 0), setting)
    objective = make(ObjectiveConfig(kind=run.objective), toy.Tokenizer(), seed=1)  # type: ignore[arg-type]
    teachers = method.teacher.models if isinstance(method, Distill) and method.teacher else []
    there = [tensor for each in (model, *teachers) for tensor in (*each.parameters(), *each.buffers())]
    with pretended(there) as device:
        engine = Engine(model, toy.settings(), run.stage, "fp32", run.micro_batch, toy.GLOBAL_BATCH // run.micro_batch)
        method.begin(engine)
        loop = Loop(engine, objective, method, toy.settings(), run.micro_batch, STEPS, seed=5)
        for number, share in enumerate(toy.feed(0, STEPS)):
            marks = {name: toy.columns(number)["starts"] | True for name in objective.columns()}
            device.forget()
            loop.step(share | marks, number, 1e-3)
            seen.append(device.told())
    return seen


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns the importance of units and parameters for earlier text, for DAS and EWC."""
    fisher = tmp_path_factory.mktemp("fisher")
    save_file({name: each.detach().clone() for name, each in toy.model().named_parameters()}, fisher / FISHER_FILE)
    return {**saved(tmp_path_factory.mktemp("importance") / "past", 1.0), "fisher": fisher}


def assert_waits_once(ranks: Any, runs: list[Run]) -> None:
    for run, steps in zip(runs, ranks(1).run(watched, runs)[0], strict=True):
        assert len(steps) == STEPS
        for step in steps:
            assert step.met == [], run
            assert step.waits == [READ], run
            assert run.stage or step.others == [], run


@pytest.mark.parametrize("stage", range(4))
def test_a_step_waits_only_for_its_gradient_norm(ranks: Any, stage: int, past: dict[str, Path]) -> None:
    """A step waits only for its gradient norm, with every method and with one or two passes."""
    sizes = (4,) if stage else (8, 4)
    assert_waits_once(ranks, [Run(stage, size, method, past=past) for method in METHODS for size in sizes])


@pytest.mark.parametrize("method", ["plain", "das lean"])
def test_every_objective_waits_once(ranks: Any, method: str) -> None:
    """Every objective waits once per step, also with DAS at its first domain.

    At its first domain, DAS has no earlier importance, so it compares documents with each other.
    """
    assert_waits_once(ranks, [Run(method=method, objective=kind) for kind in KINDS])


@pytest.mark.parametrize("granularity", ["batch", "example"])
@pytest.mark.parametrize("about", ["general", "domain"])
def test_importance_is_read_once_all_batches_are_through(about: str, granularity: Any) -> None:
    model, seed = toy.model(dropout=0.1), 1 if about == "general" else None
    batches = [(number, Batch.of(toy.columns(number))) for number in range(3)]
    settings = MeasureSettings(granularity, dropout_seed=seed, rows=4)
    with pretended([*model.parameters(), *model.buffers()]) as device:
        judged = Disagreement() if about == "general" else toy.Objective()
        gate_sizes(model, Gates(model), judged, batches, settings)
    assert device.met == []
    assert device.waits == ["cpu"] * len(UNITS)


def test_waits_are_detected() -> None:
    there, here = torch.arange(3.0), torch.arange(3.0)
    with pretended([there]) as device:
        assert (there > 0).sum().item() == 2
        there[there > 0]
        (there + 1).tolist()
        there.view(3, 1).repeat_interleave(torch.tensor([1, 2, 0]).to("cpu"), dim=0)
        there.new_tensor(2.0)
        torch.tensor([1.0], device="cpu") + there
        here.to(there) + there
        there.to("cpu")  # the tensor is on the device, so copying it to the host waits
        here[here > 0].tolist()  # this tensor is on the host, so reading it does not wait
    assert [each.removeprefix("aten.").split(".")[0] for each in device.waits] == [
        "_local_scalar_dense",
        "index",
        "tolist",
        "to",
        "repeat_interleave",
        "new_tensor",
        "tensor",
        "to",
    ]
    assert device.met == []


def test_mixed_devices_are_detected() -> None:
    there, here = torch.arange(3.0), torch.arange(3.0)
    with pretended([there]) as device:
        there + here
        there * torch.tensor(2.0)  # a tensor that contains a single number is allowed
        there + torch.ones(3, device="cpu")  # a tensor created with `device=` counts as on the device
        torch.stack([there * 2, there.clone()])
    assert device.met == ["aten.add.Tensor"]


def test_waits_of_deepspeed_are_distinguished_from_ours() -> None:
    """A wait is attributed to DeepSpeed or to our code, whichever is innermost on the stack."""
    there = torch.arange(3.0)
    names = {"there": there}
    inner = compile("def read(): return there.sum().item()", "/site-packages/deepspeed/zero.py", "exec")
    exec(inner, names)
    outer = compile("def step(): return read()", "/site-packages/torch/optim/adamw.py", "exec")
    exec(outer, names)
    with pretended([there]) as device:
        names["step"]()  # type: ignore[operator]
        there.sum().item()
    assert device.others == device.waits == [READ]
