"""Finds the layers of a transformer and their units: attention heads, inner and output neurons of feed-forward blocks.

A gate is a factor on the output of a unit, set by hooks. The gradient at a gate measures how important the unit is
(arXiv 2302.03241), and methods can protect the parameters that compute an important unit's output. This module finds
these parameters in every supported architecture.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adapt.model.architecture import Pattern, pattern_of


@dataclass(frozen=True)
class Layer:
    """One layer of a model, with the names of its parts."""

    name: str
    """Name of the layer in the model, which is the prefix of the names of the layer's parameters."""
    module: nn.Module
    pattern: Pattern

    def part(self, name: str) -> Any:
        """Returns the layer's submodule with this name."""
        return self.module.get_submodule(name)

    def ends(self, block: str) -> tuple[Any, Any]:
        """Returns the first and the last linear layer of a block, `attention` or `feed_forward`."""
        if block == "attention":
            return self.part(self.pattern.query), self.part(self.pattern.attention_out)
        return self.part(self.pattern.inner[0]), self.part(self.pattern.outer)


def layers_of(model: Any) -> list[Layer]:
    """Returns the layers of a model, in order.

    Raises:
        ModelError: the architecture is not supported.
    """
    pattern = pattern_of(model.config.model_type)
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    modules = base.get_submodule(pattern.layers)
    return [Layer(f"{prefix}{pattern.layers}.{number}", module, pattern) for number, module in enumerate(modules)]


def is_transposed(module: nn.Module) -> bool:
    """Whether the weight of a linear layer is [inputs, outputs], as in GPT-2."""
    return isinstance(module, Conv1D)


def outputs(module: Any) -> int:
    """Returns the number of outputs of a linear layer."""
    return int(module.weight.shape[1 if is_transposed(module) else 0])


def inputs(module: Any) -> int:
    """Returns the number of inputs of a linear layer."""
    return int(module.weight.shape[0 if is_transposed(module) else 1])


class _Added:
    """Hooks that add a module's result to the output of a block.

    The module is an attribute of this object, so that a copy of the model also has a copy of the module in its hooks.
    """

    def __init__(self, maker: Any, scale: float) -> None:
        self.maker, self.scale = maker, scale
        self.term: Tensor | None = None

    def enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.term = self.maker.added(arguments[0])

    def leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        term, self.term = self.term, None
        return output if term is None else output + self.scale * term

    def follow(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        term: Tensor | None = self.maker.added(output)
        return output if term is None else output + term


def add_to_block(layer: Layer, block: str, maker: Any, parallel: bool, scale: float = 1.0) -> None:
    """Registers hooks that add a module's result to the output of a block.

    Args:
        layer: the layer with the block.
        block: `attention` or `feed_forward`.
        maker: a module with a method `added`, which computes the term from states, or returns None to add nothing.
        parallel: whether the term is computed from the input of the block. Otherwise it is computed from the output.
        scale: factor of a parallel term.
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
"""A value for each unit of each layer, [layers, units], keyed by kind of unit (head, inner or output neuron)."""


def unit_counts(model: Any) -> dict[Kind, int]:
    """Returns the number of units of each kind in one layer."""
    first = layers_of(model)[0]
    outer = first.part(first.pattern.outer)
    return {"head": int(model.config.num_attention_heads), "inner": inputs(outer), "output": outputs(outer)}


def ones(model: Any) -> dict[Kind, Tensor]:
    """Returns a value of 1 for each gate, on the model's device. With these values, gates change nothing."""
    count, device = len(layers_of(model)), next(model.parameters()).device
    return {kind: torch.ones(count, size, device=device) for kind, size in unit_counts(model).items()}


class Gates:
    """Hooks that multiply the outputs of a model's units by values. Until values are set, the model is unchanged.

    The gate of a head acts at the input of the attention's last linear layer. The gate of an inner neuron acts before
    the neuron's activation, or in gated (GLU) blocks at the input of the last linear layer. The gate of an output
    neuron acts before dropout and residual.

    The hooks are permanent. Create the gates before layers are compiled, because a compiled layer only runs hooks that
    existed at that time. Create the gates before DeepSpeed wraps the model, because DeepSpeed's hooks must come after
    them. If modules of a layer are replaced, create the gates afterwards.

    Args:
        model: a model with unsharded weights, which may be wrapped afterwards. The gates of a copy of the model cannot
            be set.
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
        """Returns a context manager that multiplies the outputs of units by `values`, which get gradients.

        With gradient checkpointing, layers run again in the backward pass, so call backward() inside the block too.

        Args:
            values: values for each kind of unit, [layers, units], or with `owner` [layers, groups, units].
            owner: the group of each token of the packed sequence, int64 [N]; None for one group.
        """
        assert all(values[kind].shape[-1] == size for kind, size in self.sizes.items())
        gates = [(hook, value) for kind in KINDS for hook, value in zip(self._hooks[kind], values[kind], strict=True)]
        before = [(hook.values, hook.owner) for hook, _ in gates]
        for hook, value in gates:
            hook.values, hook.owner = value, owner
        try:
            yield
        finally:
            for (hook, _), previous in zip(gates, before, strict=True):
                hook.values, hook.owner = previous


class _Hook:
    """A hook that multiplies units by values. The values are attributes, so that all layers share compiled code."""

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.owner: Tensor | None = None

    def gated(self, states: Tensor) -> Tensor:
        """Multiplies each unit of states [..., N, units x width] by the unit's value."""
        if self.values is None:
            return states
        gate = self.values if self.owner is None else self.values.index_select(0, self.owner)
        return multiply_units(states, gate)


def multiply_units(states: Tensor, values: Tensor) -> Tensor:
    """Multiplies each unit of states [..., units x width] by its value, [units] or [..., units]."""
    by_unit: Tensor = states.unflatten(-1, (values.shape[-1], -1))
    return (by_unit * values.to(states.dtype)[..., None]).flatten(-2)


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
    """Whether inner neurons are products (GLU) of the outputs of two modules, or of both halves of one output."""
    inner = sum(outputs(layer.part(name)) for name in layer.pattern.inner)
    return inner == 2 * inputs(layer.part(layer.pattern.outer))


def by_parameter(model: Any, values: Values) -> dict[str, Tensor]:
    """Returns, for each parameter, the value of the unit to which it belongs (arXiv 2302.03241, section 4.2).

    The rows of query, key and value (weights and biases) and the columns of the attention's last weight belong to
    heads. The rows of the layers that compute inner neurons belong to these neurons, and the rows of the last layer
    belong to output neurons. If several heads share a key and value head, the shared head gets the largest of their
    values. Embeddings, norms and the LM head belong to no unit.

    Args:
        model: the model with the parameters.
        values: values of units, such as importances.

    Returns:
        Values, keyed by parameter name, fp32, in shapes that broadcast to the parameters' shapes.
    """
    by_name: dict[str, Tensor] = {}
    for number, layer in enumerate(layers_of(model)):
        pattern, (head, inner, output) = layer.pattern, (values[kind][number].float() for kind in KINDS)
        width = inputs(layer.part(pattern.attention_out)) // len(head)
        if pattern.fused:
            _rows(by_name, layer, pattern.query, head.repeat_interleave(width).repeat(3))
        else:
            for name in (pattern.query, pattern.key, pattern.value):
                heads = outputs(layer.part(name)) // width  # query heads may share key heads
                _rows(by_name, layer, name, head.view(heads, -1).amax(1).repeat_interleave(width))
        weight = f"{layer.name}.{pattern.attention_out}.weight"
        by_name[weight] = _across(layer.part(pattern.attention_out), head.repeat_interleave(width), rows=False)
        for name in pattern.inner:
            _rows(by_name, layer, name, inner.repeat(outputs(layer.part(name)) // len(inner)))
        _rows(by_name, layer, pattern.outer, output)
    return by_name


def _rows(by_name: dict[str, Tensor], layer: Layer, name: str, values: Tensor) -> None:
    """Enters one value per output of a linear layer into `by_name`, for the layer's weight and its bias."""
    module = layer.part(name)
    by_name[f"{layer.name}.{name}.weight"] = _across(module, values, rows=True)
    if module.bias is not None:
        by_name[f"{layer.name}.{name}.bias"] = values


def _across(module: Any, values: Tensor, rows: bool) -> Tensor:
    """Reshapes values to broadcast to a linear layer's weight: one value per output if `rows`, else one per input."""
    return values[:, None] if rows != is_transposed(module) else values[None, :]


def insert_copies(model: Any, layers: Sequence[Layer], sources: Sequence[tuple[int, bool]]) -> None:
    """Replaces a model's list of layers with the same layers plus copies whose output projections are 0.

    Args:
        model: the model. Its config already has the larger number of layers.
        layers: the model's layers.
        sources: for each layer of the larger model, the number of its source layer, and whether it is a copy. Only
            copies are trained.
    """
    expanded: list[Any] = []
    for source, is_new in sources:
        layer = layers[source]
        if not is_new:
            expanded.append(layer.module)
            continue
        new: Any = copy.deepcopy(layer.module, {id(model.config): model.config})
        _complete(new, model.config, len(expanded))
        for part in (layer.pattern.attention_out, layer.pattern.outer):
            projection = new.get_submodule(part)
            for parameter in projection.parameters(recurse=False):
                nn.init.zeros_(parameter)
        expanded.append(new.requires_grad_(True))
    for number, each in enumerate(expanded):
        for module in each.modules():
            if "layer_idx" in vars(module):  # renumbers the layers, because key-value caches use the layers' numbers
                vars(module)["layer_idx"] = number
    parent, _, name = layers[0].pattern.layers.rpartition(".")
    setattr(model.base_model.get_submodule(parent), name, nn.ModuleList(expanded))


def _complete(layer: Any, config: Any, number: int) -> None:
    """Adds to a copied layer the parts that the architecture has at layer `number` (from 0), but not at the original's.

    This applies to copies of ModernBERT's layer 0, which has no norm before attention, unlike all other layers. The
    initial weights of the added norm do not matter, because the copy's output projections are 0.
    """
    with torch.device("meta"):
        made = type(layer)(config, layer_idx=number)
    device, mode = next(layer.parameters()).device, layer.training
    for name, part in made.named_children():
        if {each for each, _ in part.named_parameters()} - {
            each for each, _ in layer.get_submodule(name).named_parameters()
        }:
            part.to_empty(device=device).reset_parameters()
            setattr(layer, name, part.train(mode))
