"""Masked parameters move by exactly 1 - I of the unmasked step."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapt.errors import ModelError
from adapt.method.base import Setting
from adapt.method.das.soft_mask import SoftMask
from adapt.model.layers.masked import Mask, Target, in_use
from adapt.model.layers.units import Kind, by_parameter, ones
from adapt.model.outputs.head import loss_at
from tests.model.families import FAMILIES, VOCABULARY, ready
from tests.model.layers.test_units import PACKED, TOKENS, states

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6}
STEPS = 5
FREE_TOKENS, FIXED_TOKENS = slice(0, 10), slice(10, 20)
TIED = {"bert", "roberta", "distilbert", "electra", "modernbert", "gpt2"}


def importance(model: Any, seed: int = 0) -> dict[Kind, Tensor]:
    """Anything in [0, 1], with a 0 and a 1 in each layer."""
    generator = torch.Generator().manual_seed(seed)
    found = {kind: torch.rand(each.shape, generator=generator) for kind, each in ones(model).items()}
    for each in found.values():
        each[:, 0], each[:, 1] = 0.0, 1.0
    return found


def tokens_importance(vocabulary: int = VOCABULARY) -> Tensor:
    """Anything in [0, 1], some 0 and some 1."""
    found = torch.rand(vocabulary, generator=torch.Generator().manual_seed(2))
    found[FREE_TOKENS], found[FIXED_TOKENS] = 0.0, 1.0
    return found


def keep_of(model: Any, embedding: bool = True) -> dict[str, Tensor]:
    """1 - I by parameter, 1 for those that are not masked; what `masked` masks."""
    found = {name: torch.ones(()) for name, _ in model.named_parameters()}
    found |= {name: 1 - each for name, each in by_parameter(model, importance(model)).items()}
    if embedding:
        table = model.get_input_embeddings().weight
        name = next(name for name, parameter in model.named_parameters() if parameter is table)
        found[name] = 1 - tokens_importance(len(table))[:, None]
    return found


def masked(model: Any, target: Target = "update", embedding: bool = True) -> SoftMask:
    """Masks a model, and gives the method."""
    rows = tokens_importance(len(model.get_input_embeddings().weight)) if embedding else None
    method = SoftMask(importance(model), target, rows)
    method.prepare_model(model, Setting())
    return method


def weight_in_use(model: Any, name: str) -> Tensor:
    """What the layer computes with, from which the parameter's gradient comes."""
    module, _, part = name.rpartition(".")
    found: Tensor = in_use(model.get_submodule(module), part)
    return found


def trained(model: Any, method: SoftMask | None = None, decay: float = 0.0) -> dict[str, Tensor]:
    """Weights after some steps whose gradients do not depend on the weights, so that runs can be compared."""
    model = copy.deepcopy(model)
    if method:
        method.prepare_model(model, Setting())
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(named.values(), weight_decay=decay, **SETTINGS)
    for step in range(STEPS):
        for number, name in enumerate(sorted(named)):
            generator = torch.Generator().manual_seed(1000 * step + number)
            gradient = torch.randn(named[name].shape, generator=generator) * 1e-4
            (weight_in_use(model, name) * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {name: parameter.detach().clone() for name, parameter in named.items()}
    return method.merge(state) if method else state


def moved(model: Any) -> None:
    """Changes all parameters."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))


def gradients(model: Any) -> dict[str, Tensor]:
    """Of a loss that needs everything: embeddings, layers and head."""
    model.zero_grad()
    positions = torch.arange(0, len(TOKENS), 2)
    loss_at(model, PACKED, positions, TOKENS[positions]).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_is_scaled_by_what_is_left(family: str, decay: float) -> None:
    """Decay is a part of the step. What is free moves as without masks bit for bit, what is fixed not at all."""
    model = ready(family)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    method = SoftMask(importance(model), "update", tokens_importance())
    plain, found = trained(model, decay=decay), trained(model, method, decay)
    assert plain.keys() == found.keys()
    for name, keep in keep_of(model).items():
        expected = start[name] + keep * (plain[name] - start[name])
        torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-5)
        free, fixed = (each.expand_as(expected) for each in (keep == 1, keep == 0))
        assert torch.equal(found[name][free], plain[name][free])
        assert torch.equal(found[name][fixed], start[name][fixed])


def test_the_published_mask_hardly_acts_under_adam() -> None:
    """What METHODS says of the reference code: scaled gradients make almost the same steps."""
    model = ready("bert")
    values = {kind: torch.full_like(each, 0.76) for kind, each in ones(model).items()}
    names = by_parameter(model, values)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}

    def movement(method: SoftMask | None = None) -> Tensor:
        found = trained(model, method)
        return torch.cat([(found[name] - start[name]).abs().flatten() for name in names]).mean()

    assert movement(SoftMask(values, "gradient")) / movement() > 0.9
    assert movement(SoftMask(values, "update")) / movement() == pytest.approx(0.24, rel=1e-3)


@pytest.mark.parametrize("target", ["update", "gradient"])
def test_without_importance_nothing_is_masked(target: Target) -> None:
    model = ready("bert")
    before = [type(module) for module in model.modules()]
    values = {kind: torch.zeros_like(each) for kind, each in ones(model).items()}
    SoftMask(values, target, torch.zeros(VOCABULARY)).prepare_model(model, Setting())
    assert [type(module) for module in model.modules()] == before


@pytest.mark.parametrize("family", FAMILIES)
def test_the_masked_model_computes_what_the_merged_one_does(family: str) -> None:
    """And its parameters get the gradients that the merged model's would: of both uses of a tied matrix, unscaled."""
    model, other = ready(family), ready(family)
    before, method = states(model), masked(other)
    assert torch.equal(states(other), before)
    moved(other)
    merged = method.merge({name: each.detach().clone() for name, each in other.state_dict().items()})
    missing = model.load_state_dict(merged, strict=True).missing_keys
    assert not missing
    assert not torch.allclose(states(model), before, atol=1e-2)
    torch.testing.assert_close(states(other), states(model), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradients(other), gradients(model), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_published_mask_scales_gradients_and_nothing_else(family: str) -> None:
    model, other = ready(family), ready(family)
    method = masked(other, "gradient")
    assert torch.equal(states(other), states(model))
    expected = {name: keep_of(model)[name] * each for name, each in gradients(model).items()}
    torch.testing.assert_close(gradients(other), expected, atol=1e-6, rtol=1e-4)
    state = {name: each.clone() for name, each in other.state_dict().items()}
    assert all(torch.equal(each, state[name]) for name, each in method.merge(dict(state)).items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_is_masked_with_the_embeddings_and_a_free_one_is_not(family: str) -> None:
    model = ready(family)
    masked(model)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert (table.weight is head.weight) == (family in TIED)
    moved(model)
    assert not torch.equal(in_use(table, "weight"), table.weight)
    if family in TIED:
        assert head.weight_mask is table.weight_mask  # one start in memory, also after a move to another device
        assert torch.equal(in_use(head, "weight"), in_use(table, "weight"))
    else:
        assert in_use(head, "weight") is head.weight


def test_hooks_of_before_stay() -> None:
    """The gates of units are hooks."""
    model, called = ready("bert"), []
    model.bert.encoder.layer[0].output.dense.register_forward_hook(lambda *_: called.append(1))
    masked(model)
    states(model)
    assert called == [1]


@pytest.mark.parametrize("rows", [VOCABULARY - 1, VOCABULARY + 14])
def test_importance_of_another_vocabulary_is_refused(rows: int) -> None:
    model = ready("bert")
    with pytest.raises(ModelError, match=f"measured for {rows} tokens, and the model has embeddings for {VOCABULARY}"):
        SoftMask(importance(model), "update", torch.ones(rows)).prepare_model(model, Setting())


def test_a_layer_of_another_kind_is_named() -> None:
    class Odd(nn.Linear):
        pass

    model = ready("bert")
    model.bert.encoder.layer[1].output.dense.__class__ = Odd
    with pytest.raises(ModelError, match=r"bert\.encoder\.layer\.1\.output\.dense\.weight cannot be masked: .* Odd"):
        masked(model)


def test_masks_are_no_part_of_a_checkpoint() -> None:
    model = ready("bert")
    names = model.state_dict().keys()
    masked(model)
    assert model.state_dict().keys() == names
    assert any(isinstance(module, Mask) for module in model.modules())
