"""The units of a transformer: attention heads, inner and output neurons of feed-forward layers, by architecture.

DAS (arXiv 2302.03241) measures how important each unit is, through virtual gates that multiply what a unit puts out,
and then protects the parameters that make a unit's output. Which those are is said here, once for every architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from adapt.errors import ModelError

Kind = Literal["head", "inner", "output"]
KINDS: tuple[Kind, ...] = ("head", "inner", "output")
Values = Mapping[Kind, Tensor]
"""For each kind of unit a value for every unit of every layer, [layers, units]."""


@dataclass(frozen=True)
class Pattern:
    """The parts of a layer, by the names of its modules."""

    layers: str
    """The list of layers, below base_model."""
    query: str
    key: str
    value: str
    attention_out: str
    """Its input holds the heads' outputs, one after another."""
    inner: tuple[str, ...]
    """What makes the inner neurons; several where they are gated."""
    outer: str
    """What makes the output neurons."""
    fused: bool = False
    """Query, key and value are one module, their rows in this order."""


_BERT = Pattern(
    layers="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_out="attention.output.dense",
    inner=("intermediate.dense",),
    outer="output.dense",
)
_LLAMA = Pattern(
    layers="layers",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_out="self_attn.o_proj",
    inner=("mlp.gate_proj", "mlp.up_proj"),
    outer="mlp.down_proj",
)
PATTERNS: dict[str, Pattern] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "distilbert": Pattern(
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_out="attention.out_lin",
        inner=("ffn.lin1",),
        outer="ffn.lin2",
    ),
    "modernbert": Pattern(
        layers="layers",
        query="attn.Wqkv",
        key="attn.Wqkv",
        value="attn.Wqkv",
        attention_out="attn.Wo",
        inner=("mlp.Wi",),
        outer="mlp.Wo",
        fused=True,
    ),
    "gpt2": Pattern(
        layers="h",
        query="attn.c_attn",
        key="attn.c_attn",
        value="attn.c_attn",
        attention_out="attn.c_proj",
        inner=("mlp.c_fc",),
        outer="mlp.c_proj",
        fused=True,
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
}
"""By `model_type` of the configuration."""


@dataclass(frozen=True)
class Layer:
    """One layer's modules."""

    name: str
    """Of the layer in the model; parameters are named below it."""
    module: nn.Module
    pattern: Pattern

    def part(self, name: str) -> Any:
        """One of its modules."""
        return self.module.get_submodule(name)


def layers_of(model: Any) -> list[Layer]:
    """The layers of a model, in order.

    Raises:
        ModelError: its architecture is not known.
    """
    kind = model.config.model_type
    pattern = PATTERNS.get(kind)
    if pattern is None:
        raise ModelError(
            f"the units of {kind} models are not known (known: {', '.join(sorted(PATTERNS))})",
            f"add a Pattern for {kind!r} to PATTERNS in adapt/model/units.py, and a test",
        )
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    modules = base.get_submodule(pattern.layers)
    return [Layer(f"{prefix}{pattern.layers}.{number}", module, pattern) for number, module in enumerate(modules)]


def sizes(model: Any) -> dict[Kind, int]:
    """How many units of each kind a layer has."""
    first = layers_of(model)[0]
    outer = first.part(first.pattern.outer)
    return {"head": int(model.config.num_attention_heads), "inner": _inputs(outer), "output": _outputs(outer)}


def ones(model: Any) -> dict[Kind, Tensor]:
    """Gates that change nothing, on the model's device."""
    count, device = len(layers_of(model)), next(model.parameters()).device
    return {kind: torch.ones(count, size, device=device) for kind, size in sizes(model).items()}


@contextmanager
def gated(model: Any, gates: Values) -> Iterator[None]:
    """Inside the block, what each unit puts out is multiplied by its gate; gradients reach the gates.

    A head's gate acts where its output enters the attention's last linear layer; an inner neuron's before its
    activation, or, where it is gated itself, on what enters the last linear layer; an output neuron's before dropout
    and residual.
    """
    with ExitStack() as hooks:
        for number, layer in enumerate(layers_of(model)):
            pattern, (head, inner, output) = layer.pattern, (gates[kind][number] for kind in KINDS)
            attention_out, outer = layer.part(pattern.attention_out), layer.part(pattern.outer)
            width = _inputs(attention_out) // len(head)
            hooks.callback(attention_out.register_forward_pre_hook(_on_input(head.repeat_interleave(width))).remove)
            if _is_gated(layer):
                hooks.callback(outer.register_forward_pre_hook(_on_input(inner)).remove)
            else:
                hooks.callback(layer.part(pattern.inner[0]).register_forward_hook(_on_output(inner)).remove)
            hooks.callback(outer.register_forward_hook(_on_output(output)).remove)
        yield


def _on_input(gate: Tensor) -> Any:
    return lambda module, inputs: (inputs[0] * gate.to(inputs[0].dtype), *inputs[1:])


def _on_output(gate: Tensor) -> Any:
    return lambda module, inputs, output: output * gate.to(output.dtype)


def _is_gated(layer: Layer) -> bool:
    """Whether inner neurons are products of two halves, or of two modules."""
    made = sum(_outputs(layer.part(name)) for name in layer.pattern.inner)
    return made == 2 * _inputs(layer.part(layer.pattern.outer))


def by_parameter(model: Any, values: Values) -> dict[str, Tensor]:
    """What the units' values mean for the parameters that make their outputs (arXiv 2302.03241, section 4.2).

    A head owns its rows of query, key and value (weights and biases) and its columns of the attention's last weight; an
    inner neuron its rows of the layers that make it, an output neuron those of the last. Where several heads share a
    key and value head, that gets the largest of their values. Embeddings, norms and the LM head belong to no unit.

    Args:
        model: whose parameters.
        values: for example importances.

    Returns:
        By the parameter's name in the model, fp32, of a shape that broadcasts to the parameter's.
    """
    found: dict[str, Tensor] = {}
    for number, layer in enumerate(layers_of(model)):
        pattern, (head, inner, output) = layer.pattern, (values[kind][number].float() for kind in KINDS)
        width = _inputs(layer.part(pattern.attention_out)) // len(head)
        if pattern.fused:
            _rows(found, layer, pattern.query, head.repeat_interleave(width).repeat(3))
        else:
            for name in (pattern.query, pattern.key, pattern.value):
                heads = _outputs(layer.part(name)) // width  # fewer than queries where they share
                _rows(found, layer, name, head.view(heads, -1).amax(1).repeat_interleave(width))
        weight = f"{layer.name}.{pattern.attention_out}.weight"
        found[weight] = _across(layer.part(pattern.attention_out), head.repeat_interleave(width), rows=False)
        for name in pattern.inner:
            _rows(found, layer, name, inner.repeat(_outputs(layer.part(name)) // len(inner)))
        _rows(found, layer, pattern.outer, output)
    return found


def _rows(found: dict[str, Tensor], layer: Layer, name: str, values: Tensor) -> None:
    """A value for each output of a linear layer."""
    module = layer.part(name)
    found[f"{layer.name}.{name}.weight"] = _across(module, values, rows=True)
    if module.bias is not None:
        found[f"{layer.name}.{name}.bias"] = values


def _across(module: Any, values: Tensor, rows: bool) -> Tensor:
    """Values by output (rows) or input of a linear layer, to broadcast to its weight. GPT-2's is transposed."""
    return values[:, None] if rows != is_transposed(module) else values[None, :]


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer's weight is [inputs, outputs], as GPT-2's is."""
    return bool(getattr(module, "transposed", type(module).__name__ == "Conv1D"))


def _outputs(module: Any) -> int:
    return int(module.weight.shape[1 if is_transposed(module) else 0])


def _inputs(module: Any) -> int:
    return int(module.weight.shape[0 if is_transposed(module) else 1])
