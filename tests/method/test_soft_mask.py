"""Masked parameters move by exactly 1 - I of the unmasked step."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.method.soft_mask import Moved, SoftMask
from adapt.model.units import Kind, by_parameter, ones
from tests.model.families import FAMILIES, ready
from tests.model.test_units import states

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6}
STEPS = 5


def importance(model: Any, seed: int = 0) -> dict[Kind, Tensor]:
    """Anything in [0, 1], with a 0 and a 1 in each layer."""
    generator = torch.Generator().manual_seed(seed)
    found = {kind: torch.rand(each.shape, generator=generator) for kind, each in ones(model).items()}
    for each in found.values():
        each[:, 0], each[:, 1] = 0.0, 1.0
    return found


def weight_in_use(model: Any, name: str, parameter: Tensor) -> Tensor:
    """What the layer computes with, from which the parameter's gradient comes."""
    module, _, part = name.rpartition(".")
    layer = model.get_submodule(module)
    return layer.now(part) if isinstance(layer, Moved) else parameter


def trained(model: Any, method: SoftMask | None = None, decay: float = 0.0) -> dict[str, Tensor]:
    """Weights after some steps whose gradients do not depend on the weights, so that runs can be compared."""
    model = copy.deepcopy(model)
    if method:
        method.prepare_model(model, {})
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(named.values(), weight_decay=decay, **SETTINGS)
    for step in range(STEPS):
        for number, name in enumerate(sorted(named)):
            parameter = named[name]
            generator = torch.Generator().manual_seed(1000 * step + number)
            gradient = torch.randn(parameter.shape, generator=generator) * 1e-4
            (weight_in_use(model, name, parameter) * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {name: parameter.detach().clone() for name, parameter in named.items()}
    return method.merge(state) if method else state


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_scaled_by_what_is_left(family: str) -> None:
    model = ready(family)
    values = importance(model)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    plain, masked = trained(model), trained(model, SoftMask(values))
    assert plain.keys() == masked.keys()
    keep = {name: 1 - each for name, each in by_parameter(model, values).items()}
    for name, before in start.items():
        expected = keep.get(name, torch.ones(())) * (plain[name] - before)
        torch.testing.assert_close(masked[name] - before, expected, atol=1e-6, rtol=1e-4)


def test_the_published_mask_hardly_acts_under_adam() -> None:
    """What METHODS says of the reference code: scaled gradients make almost the same steps."""
    model = ready("bert")
    values = {kind: torch.full_like(each, 0.76) for kind, each in ones(model).items()}
    names = by_parameter(model, values)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}

    def moved(target: Any) -> Tensor:
        found = trained(model, SoftMask(values, target))
        return torch.cat([(found[name] - start[name]).abs().flatten() for name in names]).mean()

    plain = trained(model)
    whole = torch.cat([(plain[name] - start[name]).abs().flatten() for name in names]).mean()
    assert moved("gradient") / whole > 0.9
    assert moved("update") / whole == pytest.approx(0.24, rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_fully_important_does_not_move(family: str) -> None:
    model = ready(family)
    values = ones(model)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    masked = trained(model, SoftMask(values), decay=0.1)
    for name in by_parameter(model, values):
        assert torch.equal(masked[name], start[name])


@pytest.mark.parametrize("target", ["update", "gradient"])
def test_without_importance_it_is_plain_training_bit_for_bit(target: Any) -> None:
    model = ready("bert")
    values = {kind: torch.zeros_like(each) for kind, each in ones(model).items()}
    plain, masked = trained(model, decay=0.1), trained(model, SoftMask(values, target), decay=0.1)
    assert all(torch.equal(plain[name], masked[name]) for name in plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_masked_model_computes_what_the_merged_one_does(family: str) -> None:
    model, masked = ready(family), ready(family)
    method = SoftMask(importance(model))
    before = states(model)
    method.prepare_model(masked, {})
    torch.testing.assert_close(states(masked), before)
    with torch.no_grad():
        for number, parameter in enumerate(masked.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    merged = method.merge({name: each.detach().clone() for name, each in masked.named_parameters()})
    model.load_state_dict(merged, strict=False)
    torch.testing.assert_close(states(masked), states(model), atol=1e-5, rtol=1e-4)
