"""The layers of a transformer and their units: attention heads, inner and output neurons of feed-forward layers.

Virtual gates multiply the output of each unit. Their gradients measure how important the unit is (arXiv 2302.03241), so
that the parameters that make its output can be protected. This module says, for every architecture, which parameters
those are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adapt.model.architecture import Pattern, pattern_of


@dataclass(frozen=True)
class Layer:
    """One layer's modules."""

    name: str
    """The layer's name in the model; the names of its parameters begin with it."""
    module: nn.Module
    pattern: Pattern

    def part(self, name: str) -> Any:
        """The module of the layer that has this name."""
        return self.module.get_submodule(name)

    def ends(self, block: str) -> tuple[Any, Any]:
        """The first and the last linear layer of a block, `attention` or `feed_forward`."""
        if block == "attention":
            return self.part(self.pattern.query), self.part(self.pattern.attention_out)
        return self.part(self.pattern.inner[0]), self.part(self.pattern.outer)


def layers_of(model: Any) -> list[Layer]:
    """The layers of a model, in order.

    Raises:
        ModelError: its architecture is not known.
    """
    pattern = pattern_of(model.config.model_type)
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


class _Added:
    """Hooks that add to what a block puts out. `maker` is an attribute, so that a copy of the model has its own."""

    def __init__(self, maker: Any, scale: float) -> None:
        self.maker, self.scale = maker, scale
        self.made: Tensor | None = None

    def enter(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        self.made = self.maker.added(given[0])

    def leave(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        made, self.made = self.made, None
        return output if made is None else output + self.scale * made

    def follow(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        made: Tensor | None = self.maker.added(output)
        return output if made is None else output + made


def add_to_block(layer: Layer, block: str, maker: Any, parallel: bool, scale: float = 1.0) -> None:
    """Adds something to what a block of a layer puts out.

    Args:
        layer: of a model.
        block: `attention` or `feed_forward`.
        maker: a module whose method `added` gives what is added, or None for nothing.
        parallel: made of what enters the block, and not of what it puts out.
        scale: of what is added in parallel.
    """
    (first, last), hooks = layer.ends(block), _Added(maker, scale)
    if parallel:
        first.register_forward_pre_hook(hooks.enter)
        last.register_forward_hook(hooks.leave)
    else:
        last.register_forward_hook(hooks.follow)


Kind = Literal["head", "inner", "output"]
KINDS: tuple[Kind, ...] = ("head", "inner", "output")
Values = Mapping[Kind, Tensor]
"""For each kind of unit a value for every unit of every layer, [layers, units]."""


def unit_counts(model: Any) -> dict[Kind, int]:
    """The number of units of each kind in one layer."""
    first = layers_of(model)[0]
    outer = first.part(first.pattern.outer)
    return {"head": int(model.config.num_attention_heads), "inner": inputs(outer), "output": outputs(outer)}


def ones(model: Any) -> dict[Kind, Tensor]:
    """Gates that change nothing, on the model's device."""
    count, device = len(layers_of(model)), next(model.parameters()).device
    return {kind: torch.ones(count, size, device=device) for kind, size in unit_counts(model).items()}


class Gates:
    """What multiplies the outputs of a model's units. Until values are set, the model is as it was.

    A head's gate acts where its output enters the attention's last linear layer; an inner neuron's before its
    activation, or, where it is gated itself, on what enters the last linear layer; an output neuron's before dropout
    and residual.

    The gates are hooks that stay. A compiled layer sees only those it had when it was compiled, and DeepSpeed puts its
    own after them, so gates come first, after whatever replaces a layer's modules.

    Args:
        model: with its weights whole; wrappers around it may follow. A copy of it has no gates to be set.
    """

    def __init__(self, model: Any) -> None:
        self.sizes = unit_counts(model)
        self._hooks: dict[Kind, list[_Hook]] = {kind: [] for kind in KINDS}
        for layer in layers_of(model):
            attention_out, outer = layer.part(layer.pattern.attention_out), layer.part(layer.pattern.outer)
            inner = outer if _is_gated(layer) else layer.part(layer.pattern.inner[0])
            self._hooks["head"].append(_on_input(attention_out))
            self._hooks["inner"].append(_on_input(outer) if inner is outer else _on_output(inner))
            self._hooks["output"].append(_on_output(outer))

    @contextmanager
    def set(self, values: Values, owner: Tensor | None = None) -> Iterator[None]:
        """Inside the block, what units put out is multiplied by their values. Gradients reach the values.

        Checkpointed layers run again in the backward pass, which then belongs into the block too.

        Args:
            values: for each kind [layers, units]; with `owner`, [layers, groups, units].
            owner: int64 [N], the group of each token of the packed sequence.
        """
        assert all(values[kind].shape[-1] == size for kind, size in self.sizes.items())
        gates = [(hook, value) for kind in KINDS for hook, value in zip(self._hooks[kind], values[kind], strict=True)]
        before = [(hook.values, hook.owner) for hook, _ in gates]
        for hook, value in gates:
            hook.values, hook.owner = value, owner
        try:
            yield
        finally:
            for (hook, _), kept in zip(gates, before, strict=True):
                hook.values, hook.owner = kept


class _Hook:
    """Multiplies by its values, which a compiled layer reads from here. Layers that differ in them share their code."""

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.owner: Tensor | None = None

    def gated(self, states: Tensor) -> Tensor:
        """States [..., N, units x width], every unit times its value."""
        if self.values is None:
            return states
        gate = self.values if self.owner is None else self.values.index_select(0, self.owner)
        by_unit: Tensor = states.unflatten(-1, (gate.shape[-1], -1))
        return (by_unit * gate.to(states.dtype)[..., None]).flatten(-2)


class _InputHook(_Hook):
    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.gated(arguments[0]), *arguments[1:]


class _OutputHook(_Hook):
    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.gated(output)


def _on_input(module: nn.Module) -> _Hook:
    hook = _InputHook()
    module.register_forward_pre_hook(hook)
    return hook


def _on_output(module: nn.Module) -> _Hook:
    hook = _OutputHook()
    module.register_forward_hook(hook)
    return hook


def _is_gated(layer: Layer) -> bool:
    """Whether inner neurons are products of two halves, or of two modules."""
    inner = sum(outputs(layer.part(name)) for name in layer.pattern.inner)
    return inner == 2 * inputs(layer.part(layer.pattern.outer))


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
    by_name: dict[str, Tensor] = {}
    for number, layer in enumerate(layers_of(model)):
        pattern, (head, inner, output) = layer.pattern, (values[kind][number].float() for kind in KINDS)
        width = inputs(layer.part(pattern.attention_out)) // len(head)
        if pattern.fused:
            _rows(by_name, layer, pattern.query, head.repeat_interleave(width).repeat(3))
        else:
            for name in (pattern.query, pattern.key, pattern.value):
                heads = outputs(layer.part(name)) // width  # fewer than queries where they share
                _rows(by_name, layer, name, head.view(heads, -1).amax(1).repeat_interleave(width))
        weight = f"{layer.name}.{pattern.attention_out}.weight"
        by_name[weight] = _across(layer.part(pattern.attention_out), head.repeat_interleave(width), rows=False)
        for name in pattern.inner:
            _rows(by_name, layer, name, inner.repeat(outputs(layer.part(name)) // len(inner)))
        _rows(by_name, layer, pattern.outer, output)
    return by_name


def _rows(by_name: dict[str, Tensor], layer: Layer, name: str, values: Tensor) -> None:
    """A value for each output of a linear layer."""
    module = layer.part(name)
    by_name[f"{layer.name}.{name}.weight"] = _across(module, values, rows=True)
    if module.bias is not None:
        by_name[f"{layer.name}.{name}.bias"] = values


def _across(module: Any, values: Tensor, rows: bool) -> Tensor:
    """Values by output (rows) or input of a linear layer, to broadcast to its weight. GPT-2's is transposed."""
    return values[:, None] if rows != is_transposed(module) else values[None, :]
