"""Each gate acts on exactly its unit, and each unit owns the parameters that make its output."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.errors import ModelError
from adapt.model.packed import Packed
from adapt.model.states import hidden_states
from adapt.model.units import KINDS, Kind, by_parameter, gated, layers_of, ones, sizes
from tests.model.families import FAMILIES, documents, ready

TOKENS = torch.cat(documents(9, 6))
PACKED = Packed.of(TOKENS[None], torch.ones(1, 15, dtype=torch.bool), (torch.arange(15) % 9 == 0)[None])
LAYER, UNIT = 1, 1


def states(model: Any) -> Tensor:
    with torch.no_grad():
        return hidden_states(model, PACKED)[-1]


def ablated(model: Any, kind: Kind, unit: int) -> Any:
    """The same model without a unit of a layer, by setting weights to 0: what the gate is to do, done another way."""
    model = copy.deepcopy(model)
    layer = layers_of(model)[LAYER]
    out, outer = layer.part(layer.pattern.attention_out), layer.part(layer.pattern.outer)

    def by_input(module: Any) -> Tensor:
        return module.weight if type(module).__name__ == "Conv1D" else module.weight.T

    with torch.no_grad():
        if kind == "head":
            width = by_input(out).shape[0] // sizes(model)["head"]
            by_input(out)[unit * width : (unit + 1) * width] = 0
        elif kind == "inner":
            by_input(outer)[unit] = 0
        else:
            by_input(outer)[:, unit] = 0
            if outer.bias is not None:
                outer.bias[unit] = 0
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_at_0_removes_its_unit_and_nothing_else(family: str, kind: Kind) -> None:
    model, gates = ready(family), ones(ready(family))
    gates[kind][LAYER, UNIT] = 0
    with gated(model, gates):
        found = states(model)
    assert not torch.allclose(found, states(model), atol=1e-4)
    torch.testing.assert_close(found, states(ablated(model, kind, UNIT)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_at_1_change_nothing_and_leave_nothing_behind(family: str) -> None:
    model = ready(family)
    before = states(model)
    with gated(model, ones(model)):
        assert torch.equal(states(model), before)
    with pytest.raises(RuntimeError, match="inside"), gated(model, {k: g * 0 for k, g in ones(model).items()}):
        raise RuntimeError("inside")
    assert torch.equal(states(model), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_a_gate_is_the_change_that_it_makes(family: str) -> None:
    model, gates = ready(family).double(), {kind: each.double() for kind, each in ones(ready(family)).items()}
    weights = torch.randn(15, model.config.hidden_size, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    for gate in gates.values():
        gate.requires_grad_()
    with gated(model, gates):
        (hidden_states(model, PACKED)[-1] * weights).sum().backward()
    for kind, gate in gates.items():
        assert gate.grad is not None
        values = []
        for step in (1e-3, -1e-3):
            moved = {name: each.detach().clone() for name, each in gates.items()}
            moved[kind][LAYER, UNIT] += step
            with gated(model, moved), torch.no_grad():
                values.append((hidden_states(model, PACKED)[-1] * weights).sum())
        expected = (values[0] - values[1]) / 2e-3
        torch.testing.assert_close(gate.grad[LAYER, UNIT], expected, atol=1e-3, rtol=1e-3)  # Llama's norm is fp32


def touched(model: Any, kind: Kind) -> dict[str, Tensor]:
    """The elements that belong to one unit."""
    values = {name: torch.zeros_like(each) for name, each in ones(model).items()}
    values[kind][LAYER, UNIT] = 1
    parameters = dict(model.named_parameters())
    spread = {name: each.expand_as(parameters[name]) for name, each in by_parameter(model, values).items()}
    return {name: each.bool() for name, each in spread.items() if each.any()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_belongs_to_no_other_unit_moves_this_one_only(family: str, kind: Kind) -> None:
    """Random changes of a unit's parameters cannot be seen once its gate is shut, and can while it is open."""
    model, moved = ready(family), ready(family)
    parameters = dict(moved.named_parameters())
    owned = touched(moved, kind)
    assert owned
    with torch.no_grad():
        for name, mask in owned.items():
            parameters[name][mask] += torch.randn(int(mask.sum()), generator=torch.Generator().manual_seed(3))
    gates = ones(model)
    gates[kind][LAYER] = 0
    shared = kind == "head" and family == "llama"  # one key and value head serves both query heads
    gates[kind][LAYER, :] = 1
    gates[kind][LAYER, slice(None) if shared else UNIT] = 0
    with gated(model, gates), gated(moved, gates):
        torch.testing.assert_close(states(moved), states(model), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(states(moved), states(model), atol=1e-3)


def test_heads_that_share_keys_protect_them_by_the_most_important() -> None:
    model = ready("llama")
    values = ones(model)
    values["head"] = torch.tensor([[0.2, 0.7], [0.9, 0.1]])
    found = by_parameter(model, values)
    assert found["model.layers.0.self_attn.k_proj.weight"].flatten().tolist() == pytest.approx([0.7] * 8)
    assert found["model.layers.1.self_attn.v_proj.weight"].flatten().tolist() == pytest.approx([0.9] * 8)
    assert found["model.layers.0.self_attn.q_proj.weight"].flatten().tolist() == pytest.approx([0.2] * 8 + [0.7] * 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_norms_and_the_head_belong_to_no_unit(family: str) -> None:
    names = by_parameter(ready(family), ones(ready(family)))
    assert not [name for name in names if any(word in name.lower() for word in ("embed", "norm", "ln_", "lm_head"))]


def test_an_unknown_architecture_is_named() -> None:
    model = ready("bert")
    model.config.model_type = "mamba"
    with pytest.raises(ModelError, match="the units of mamba models are not known") as caught:
        layers_of(model)
    assert "PATTERNS" in caught.value.fix
