"""Where the parts of a transformer's layer are, by architecture. A new architecture needs a `Pattern` here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from adapt.errors import ModelError


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
            f"add a Pattern for {kind!r} to PATTERNS in adapt/model/pattern.py, and a test",
        )
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    modules = base.get_submodule(pattern.layers)
    return [Layer(f"{prefix}{pattern.layers}.{number}", module, pattern) for number, module in enumerate(modules)]


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer's weight is [inputs, outputs], as GPT-2's is."""
    return isinstance(module, Conv1D)


def outputs(module: Any) -> int:
    """Neurons that a linear layer makes."""
    return int(module.weight.shape[1 if is_transposed(module) else 0])


def inputs(module: Any) -> int:
    """Neurons that a linear layer reads."""
    return int(module.weight.shape[0 if is_transposed(module) else 1])
