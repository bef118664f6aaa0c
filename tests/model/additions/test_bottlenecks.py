"""Tests adapters: new ones keep outputs, trained ones compute the papers' formula, and domains' sets are separate."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from adapt.model.additions.bottlenecks import attach_adapters
from adapt.model.additions.domain_modules import choose_set, own_parameters, sets_of
from adapt.model.layers import layers_of
from adapt.model.sparse_prediction import losses_at
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
    """Replaces a block's last layer: computes that layer plus the adapter's formula, written out."""

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
    assert torch.equal(losses(model), losses(ready("bert")))  # a new set changes nothing
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
