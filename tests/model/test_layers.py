"""Tests that each gate affects only its own unit, and that a unit's parameters affect only that unit's output."""

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.model.layers import KINDS, Gates, Kind, by_parameter, layers_of, ones, unit_counts
from adapt.model.packing.packed import Packed
from adapt.model.states import hidden_states
from adapt.support.errors import ModelError
from tests.model.families import FAMILIES, WIDTH, documents, ready

pytestmark = pytest.mark.heavy

TOKENS = torch.cat(documents(9, 6))
PACKED = Packed.of(TOKENS[None], torch.ones(1, 15, dtype=torch.bool), (torch.arange(15) % 9 == 0)[None])
SECOND = torch.arange(15) >= 9
"""Mask of the packed tokens that belong to the second document, bool [15]."""
WEIGHTS = torch.randn(15, WIDTH, dtype=torch.double, generator=torch.Generator().manual_seed(0))
LAYER, UNIT = 1, 1


def states(model: Any) -> Tensor:
    with torch.no_grad():
        return hidden_states(model, PACKED)[-1]


def ablated(model: Any, kind: Kind, unit: int) -> Any:
    """Returns a copy of the model in which the weights after one unit of LAYER are 0, which removes the unit."""
    model = copy.deepcopy(model)
    layer = layers_of(model)[LAYER]
    out, outer = layer.part(layer.pattern.attention_out), layer.part(layer.pattern.outer)

    def by_input(module: Any) -> Tensor:
        return module.weight if type(module).__name__ == "Conv1D" else module.weight.T

    with torch.no_grad():
        if kind == "head":
            width = by_input(out).shape[0] // unit_counts(model)["head"]
            by_input(out)[unit * width : (unit + 1) * width] = 0
        elif kind == "inner":
            by_input(outer)[unit] = 0
        else:
            by_input(outer)[:, unit] = 0
            if outer.bias is not None:
                outer.bias[unit] = 0
    return model


def owned(values: dict[Kind, Tensor], *groups: dict[Kind, Tensor]) -> dict[Kind, Tensor]:
    """Stacks the gate values of several groups of tokens into tensors [layers, groups, units]."""
    return {kind: torch.stack([each[kind] for each in (values, *groups)], 1) for kind in values}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_at_0_removes_its_unit_and_nothing_else(family: str, kind: Kind) -> None:
    model, shut = ready(family), ones(ready(family))
    shut[kind][LAYER, UNIT] = 0
    with Gates(model).set(shut):
        found = states(model)
    assert not torch.allclose(found, states(model), atol=1e-4)
    torch.testing.assert_close(found, states(ablated(model, kind, UNIT)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_token_uses_the_gates_of_its_group(family: str, kind: Kind) -> None:
    """Checks that a unit is removed for the second document only, although both documents are in one sequence."""
    model, shut = ready(family), ones(ready(family))
    shut[kind][LAYER, UNIT] = 0
    with Gates(model).set(owned(ones(model), shut), SECOND.long()):
        found = states(model)
    expected = torch.where(SECOND[:, None], states(ablated(model, kind, UNIT)), states(model))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_at_1_change_nothing_inside_or_after_the_block(family: str) -> None:
    model = ready(family)
    before, gates = states(model), Gates(model)
    assert torch.equal(states(model), before)
    with gates.set(ones(model)):
        assert torch.equal(states(model), before)
    with gates.set(owned(ones(model), ones(model)), SECOND.long()):
        assert torch.equal(states(model), before)
    shut = {kind: torch.zeros_like(each) for kind, each in ones(model).items()}
    with pytest.raises(RuntimeError, match="inside"), gates.set(shut):
        raise RuntimeError("inside")
    assert torch.equal(states(model), before)


def test_gates_are_restored_after_an_inner_block() -> None:
    model = ready("bert")
    halves = {kind: each / 2 for kind, each in ones(model).items()}
    gates = Gates(model)
    with gates.set(halves):
        expected = states(model)
        with gates.set(ones(model)):
            assert not torch.allclose(states(model), expected)
        assert torch.equal(states(model), expected)


def test_gates_of_another_model_are_refused() -> None:
    # the model does not have 4 heads, but 4 also divides the width
    wrong = {**ones(ready("bert")), "head": torch.ones(2, 4)}
    with pytest.raises(AssertionError), Gates(ready("bert")).set(wrong):
        pass


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_a_gate_is_that_of_finite_differences(family: str) -> None:
    model = ready(family).double()
    gates, values = Gates(model), {kind: each.double().requires_grad_() for kind, each in ones(model).items()}
    with gates.set(values):
        (hidden_states(model, PACKED)[-1] * WEIGHTS).sum().backward()
    for kind, value in values.items():
        assert value.grad is not None
        changed = []
        for step in (1e-3, -1e-3):
            moved = {name: each.detach().clone() for name, each in values.items()}
            moved[kind][LAYER, UNIT] += step
            with gates.set(moved), torch.no_grad():
                changed.append((hidden_states(model, PACKED)[-1] * WEIGHTS).sum())
        expected = (changed[0] - changed[1]) / 2e-3
        # the tolerance is large, because Llama's norm computes in fp32
        torch.testing.assert_close(value.grad[LAYER, UNIT], expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_group_come_from_its_tokens(family: str) -> None:
    """Checks that a group's gates get the gradients that ungrouped gates get from a loss on the group's tokens."""
    model = ready(family).double()
    gates, one = Gates(model), {kind: each.double() for kind, each in ones(model).items()}

    def gradients(weights: Tensor, values: dict[Kind, Tensor], owner: Tensor | None = None) -> list[Tensor]:
        leaves = {kind: each.clone().requires_grad_() for kind, each in values.items()}
        with gates.set(leaves, owner):
            loss = (hidden_states(model, PACKED)[-1] * weights).sum()
        return list(torch.autograd.grad(loss, list(leaves.values())))

    together = gradients(WEIGHTS, owned(one, one), SECOND.long())
    for group, tokens in enumerate((~SECOND, SECOND)):
        for found, expected in zip(together, gradients(WEIGHTS * tokens[:, None], one), strict=True):
            torch.testing.assert_close(found[:, group], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.heavy
def test_compiled_layers_use_new_values_of_gates() -> None:
    torch._dynamo.reset()
    model, plain = ready("bert"), ready("bert")
    gates, others = Gates(model), Gates(plain)
    for layer in layers_of(model):
        # `adapt.train.model_options` also traces each layer, but then compiles it
        layer.module.compile(backend="eager")
    draw = torch.Generator().manual_seed(0)
    values = {kind: torch.rand(each.shape, generator=draw) for kind, each in ones(model).items()}
    pairs = owned(values, ones(model))
    for given, owner in ((None, None), (values, None), (pairs, SECOND.long()), (None, None)):
        with ExitStack() as both:
            leaves = {kind: each.clone().requires_grad_() for kind, each in (given or {}).items()}
            if given:
                both.enter_context(gates.set(leaves, owner))
                both.enter_context(others.set(given, owner))
            found = hidden_states(model, PACKED)[-1]
            torch.testing.assert_close(found.detach(), states(plain), atol=1e-5, rtol=1e-4)
        if given:
            found.sum().backward()
            assert all(each.grad is not None and each.grad.any() for each in leaves.values())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # counts graphs, to check that layers were traced


def touched(model: Any, kind: Kind) -> dict[str, Tensor]:
    """Returns, keyed by parameter name, a mask of the elements that belong to unit UNIT of layer LAYER."""
    values = {name: torch.zeros_like(each) for name, each in ones(model).items()}
    values[kind][LAYER, UNIT] = 1
    parameters = dict(model.named_parameters())
    spread = {name: each.expand_as(parameters[name]) for name, each in by_parameter(model, values).items()}
    return {name: each.bool() for name, each in spread.items() if each.any()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_changed_parameters_of_a_unit_have_no_effect_if_its_gate_is_0(family: str, kind: Kind) -> None:
    """Checks that random changes of a unit's parameters affect outputs if its gate is 1, but not if the gate is 0."""
    model, moved = ready(family), ready(family)
    parameters = dict(moved.named_parameters())
    own = touched(moved, kind)
    assert own
    with torch.no_grad():
        for name, mask in own.items():
            parameters[name][mask] += torch.randn(int(mask.sum()), generator=torch.Generator().manual_seed(3))
    shut = ones(model)
    shared = kind == "head" and family == "llama"  # both query heads share one key and value head
    shut[kind][LAYER, slice(None) if shared else UNIT] = 0
    with Gates(model).set(shut), Gates(moved).set(shut):
        torch.testing.assert_close(states(moved), states(model), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(states(moved), states(model), atol=1e-3)


def test_shared_keys_get_the_largest_value_of_their_heads() -> None:
    model = ready("llama")
    values = ones(model)
    values["head"] = torch.tensor([[0.2, 0.7], [0.9, 0.1]])
    found = by_parameter(model, values)
    assert found["model.layers.0.self_attn.k_proj.weight"].flatten().tolist() == pytest.approx([0.7] * 8)
    assert found["model.layers.1.self_attn.v_proj.weight"].flatten().tolist() == pytest.approx([0.9] * 8)
    assert found["model.layers.0.self_attn.q_proj.weight"].flatten().tolist() == pytest.approx([0.2] * 8 + [0.7] * 8)


@pytest.mark.parametrize(("family", "width"), [("llama", 4), ("qwen3", 8)])
def test_a_group_of_heads_shares_its_own_keys_and_values(family: str, width: int) -> None:
    """Checks four query heads in two groups, each with its own keys and values.

    Keys and values of the second group have no effect if the gates of its two heads are 0. They have an effect if the
    gates of the first group's heads are 0.
    """
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width}
    model, moved = ready(family, **shape), ready(family, **shape)
    values = {kind: torch.zeros_like(each) for kind, each in ones(model).items()}
    values["head"][LAYER, 2] = 1
    owned_rows, parameters = by_parameter(model, values), dict(moved.named_parameters())
    with torch.no_grad():
        for name in (f"model.layers.{LAYER}.self_attn.{part}.weight" for part in ("k_proj", "v_proj")):
            rows = owned_rows[name].flatten().bool()
            assert rows.tolist() == [False] * width + [True] * width
            parameters[name][rows] += 1
    for heads, is_seen in ((slice(2, 4), False), (slice(0, 2), True)):
        shut = ones(model)
        shut["head"][LAYER, heads] = 0
        with Gates(model).set(shut), Gates(moved).set(shut):
            assert torch.allclose(states(moved), states(model), atol=1e-4) != is_seen


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_norms_and_the_head_belong_to_no_unit(family: str) -> None:
    names = by_parameter(ready(family), ones(ready(family)))
    assert not [name for name in names if any(word in name.lower() for word in ("embed", "norm", "ln_", "lm_head"))]


def test_the_error_names_an_unknown_architecture() -> None:
    model = ready("bert")
    model.config.model_type = "mamba"
    with pytest.raises(ModelError, match="the layer names of mamba models are not known") as caught:
        layers_of(model)
    assert "adapt/model/architecture.py" in caught.value.fix
