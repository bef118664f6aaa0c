"""Tests that a new expert does not change outputs, that domains have their own blocks, and that copies are separate."""

import copy
import pickle
from typing import Any

import pytest
import torch

from adapt.model.additions.domain_modules import choose_set, own_parameters, sets_of
from adapt.model.additions.experts import attach_experts, begin_experts, has_experts
from adapt.model.layers import layers_of
from adapt.support.errors import ModelError
from tests.model.additions.test_bottlenecks import losses, shaken
from tests.model.families import FAMILIES, ready


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
