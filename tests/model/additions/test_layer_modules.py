"""Compares adapters and experts with explicit computations.

Also tests that training on a domain does not change the parameters of other domains.
"""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from adapt.model.additions.domain_modules import (
    attach_adapters,
    attach_experts,
    begin_experts,
    choose_set,
    has_experts,
    own_parameters,
    sets_of,
)
from adapt.model.layers import layers_of
from adapt.model.sparse_prediction import losses_at
from adapt.support.errors import ModelError
from tests.model.families import FAMILIES, documents, packed, ready

TEXTS = documents(7, 4)


def losses(model: Any) -> torch.Tensor:
    tokens = torch.cat(TEXTS)
    return losses_at(model, packed(TEXTS, 11), torch.arange(len(tokens)), tokens)


def adapted(family: str, sets: int = 1, form: str = "sequential", placement: str = "both") -> Any:
    model = ready(family)
    attach_adapters(model, sets, 3, form, placement, 2.0)
    return model


def shaken(model: Any, seed: int = 1) -> Any:
    """Fills the parameter sets in use with random weights, to imitate training, and returns the model."""
    draw = torch.Generator().manual_seed(seed)
    for sets in sets_of(model):
        assert sets.used is not None
        for parameter in sets.used.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw) / 4
    return model


@pytest.mark.parametrize("form", ["sequential", "parallel"])
@pytest.mark.parametrize("family", FAMILIES)
def test_new_adapters_change_nothing_and_trained_ones_do(family: str, form: str) -> None:
    model, plain = adapted(family, form=form), losses(ready(family))
    assert torch.equal(losses(model), plain)
    assert not torch.allclose(losses(shaken(model)), plain, atol=1e-2)
    choose_set(model, None)
    assert torch.equal(losses(model), plain)


class Written(nn.Module):
    """Replaces the last layer of a block. Adds the adapter's output, computed by formula, to the layer's output."""

    def __init__(self, last: Any, adapter: Any) -> None:
        super().__init__()
        self.last, self.adapter = last, adapter
        self.seen: torch.Tensor | None = None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        output = self.last(states)
        read, scale = (output, 1.0) if self.seen is None else (self.seen, 2.0)
        down, up = self.adapter.down, self.adapter.up
        inner = read @ down.weight.T + down.bias
        inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
        return output + scale * (inner @ up.weight.T + up.bias)


@pytest.mark.parametrize("form", ["sequential", "parallel"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_an_adapter_computes_the_formula_of_its_paper(family: str, form: str) -> None:
    """Compares losses with a plain model in which `Written` replaces the last layer of each feed-forward block."""
    model = shaken(adapted(family, form=form, placement="feed_forward"))
    plain = ready(family)
    for layer, other in zip(layers_of(plain), layers_of(model), strict=True):
        (sets,) = other.module.get_submodule("adapters").values()
        written = Written(layer.part(layer.pattern.outer), sets[0])
        layer.module.set_submodule(layer.pattern.outer, written)
        if form == "parallel":
            first = layer.part(layer.pattern.inner[0])
            first.register_forward_pre_hook(lambda module, given, w=written: setattr(w, "seen", given[0]))
    torch.testing.assert_close(losses(model), losses(plain))


def test_each_domain_computes_with_its_own_set() -> None:
    model = shaken(adapted("bert"))
    first = losses(model)
    assert len(own_parameters(model, 1)) == len(own_parameters(model, 0))
    choose_set(model, 1)
    assert torch.equal(losses(model), losses(ready("bert")))  # a new parameter set does not change the outputs
    shaken(model, 2)
    assert not torch.allclose(losses(model), first)
    choose_set(model, 0)
    assert torch.equal(losses(model), first)


@pytest.mark.parametrize("form", ["sequential", "parallel"])
def test_a_copy_has_adapters_of_its_own(form: str) -> None:
    model = shaken(adapted("bert", form=form))
    before = losses(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        shaken(copied, 3)
        assert torch.equal(losses(model), before)
        assert not torch.allclose(losses(copied), before)


@pytest.mark.parametrize("placement", ["both", "attention", "feed_forward"])
def test_adapters_are_in_the_blocks_of_their_placement(placement: str) -> None:
    model = adapted("bert", placement=placement)
    places = {"both": 2}.get(placement, 1)
    assert len(sets_of(model)) == places * 2
    assert all(placement in ("both", name.split(".")[-1]) for name, m in model.named_modules() if m in sets_of(model))


def parted(family: str, sets: int = 1) -> Any:
    model = ready(family)
    attach_experts(model, sets)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_expert_changes_nothing(family: str) -> None:
    model, plain = parted(family), losses(ready(family))
    assert torch.equal(losses(model), plain)
    assert not torch.allclose(losses(shaken(model)), plain, atol=1e-2)
    choose_set(model, None)
    assert torch.equal(losses(model), plain)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_an_expert_replaces_its_block(family: str) -> None:
    """Compares losses with a plain model whose feed-forward blocks have the expert's weights."""
    model, plain = shaken(parted(family)), ready(family)
    for layer, other in zip(layers_of(model), layers_of(plain), strict=True):
        for name in (*layer.pattern.inner, layer.pattern.outer):
            other.part(name).load_state_dict(layer.part(name).domain_experts[0].linear.state_dict())
    torch.testing.assert_close(losses(model), losses(plain), rtol=0, atol=0)


def test_an_expert_starts_as_a_copy_of_another_or_of_the_base() -> None:
    model = shaken(parted("bert"))
    first, plain = losses(model), losses(ready("bert"))
    for number, source in ((1, None), (2, 0)):
        assert len(own_parameters(model, number)) == len(own_parameters(model, 0)) == 2 * 2 * 2
        begin_experts(model, number, source)
        choose_set(model, number)
        assert torch.equal(losses(model), plain if source is None else first)
    shaken(model, 3)
    choose_set(model, 0)
    assert torch.equal(losses(model), first)


def test_a_copy_has_experts_of_its_own() -> None:
    model = shaken(parted("gpt2"))
    before = losses(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        shaken(copied, 3)
        assert torch.equal(losses(model), before)
        assert not torch.allclose(losses(copied), before)


def test_experts_are_detected_and_not_attached_twice() -> None:
    assert has_experts(parted("bert"))
    assert not has_experts(ready("bert"))
    assert len(sets_of(parted("llama"))) == 2 * 3
    twice = parted("bert")
    with pytest.raises(ModelError, match=r"intermediate\.dense cannot have experts: it is a _PartedLinear"):
        attach_experts(twice, 1)
