"""Masks a model's units for each domain (HAT, arXiv 1801.01423). Outputs of units that a domain does not use become 0.

A mask is sigma(s e), where s is the steepness and e the domain's mask embedding, with one number per unit. At the end
of training s is large, so that each unit is either used or not. CPT (arXiv 2210.05549) then rounds the mask. Masks of
kind `unit_masks` act on units of the model itself: attention heads (at the input of the attention's last linear layer),
and inner and output neurons of the feed-forward block. `plugins` are bottlenecks that all domains share. Their inner
and output neurons have masks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.layers import add_to_block, inputs, layers_of, multiply_units, outputs

UNITS, PLUGINS = "unit_masks", "plugins"
"""Names of the two kinds of added modules with masks, and of the submodules that they add to a layer."""
MOST = 6.0
"""Maximum absolute value of a mask embedding. Values beyond it are clamped."""
POSITIVE = 2.0
"""Upper bound of the initial values of mask embeddings that start positive. The lower bound is 0."""


class UnitMask(nn.Module):
    """One domain's mask of some units.

    Args:
        units: number of units.
        steepest: steepness s of a trained mask.
        is_hard: whether a trained mask is rounded to 0 and 1.
        is_positive: whether embeddings start uniformly between 0 and `POSITIVE`, so that all units are used at first.
            Otherwise they start as standard normal numbers.
        device: device of the embedding.
    """

    def __init__(self, units: int, steepest: float, is_hard: bool, is_positive: bool, device: torch.device) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(units, device=device))
        self.steepest, self.is_hard, self.is_positive = steepest, is_hard, is_positive
        self.steepness: float | None = None
        """Steepness s during the training of the mask. None after the training."""
        if is_positive:
            nn.init.uniform_(self.embedding, 0.0, POSITIVE)
        else:
            nn.init.normal_(self.embedding)

    def fresh(self) -> "UnitMask":
        """Returns a new, untrained mask with the same options."""
        units, device = len(self.embedding), self.embedding.device
        return UnitMask(units, self.steepest, self.is_hard, self.is_positive, device)

    def values(self) -> Tensor:
        """Computes the mask's values in [0, 1], [units]. The embedding must not be sharded."""
        bounded: Tensor = _Bounded.apply(self.embedding)  # type: ignore[no-untyped-call]
        if self.steepness is None and self.is_hard:
            return (bounded > 0).to(bounded.dtype)
        steepness = self.steepest if self.steepness is None else self.steepness
        values: Tensor = torch.sigmoid(steepness * bounded)
        return values

    def forward(self, states: Tensor) -> Tensor:
        """Multiplies each unit of states [..., units x width] by its value in the mask."""
        return multiply_units(states, self.values())


class _Bounded(torch.autograd.Function):
    """Clamps values, but leaves the gradient unchanged, so that values outside the bounds can return."""

    @staticmethod
    def forward(context: Any, embedding: Tensor) -> Tensor:
        return embedding.clamp(-MOST, MOST)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class MaskedPlugin(nn.Module):
    """Computes m2 (W2 (m1 ReLU(W1 x + b1)) + b2), with the masks m1 and m2 of the domain in use. W2 and b2 start at 0.

    Args:
        hidden: width of the hidden states.
        width: number of neurons in the bottleneck.
        sets: number of domains with masks.
        mask: function that takes a number of units and a device, and returns a new mask.
        device: device of the weights.
    """

    def __init__(
        self, hidden: int, width: int, sets: int, mask: Callable[[int, torch.device], UnitMask], device: torch.device
    ) -> None:
        super().__init__()
        self.first = nn.Linear(hidden, width, device=device)
        self.second = nn.Linear(width, hidden, device=device)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)
        self.inner = DomainSets(mask(width, device) for _ in range(sets))
        self.outer = DomainSets(mask(hidden, device) for _ in range(sets))

    def added(self, states: Tensor) -> Tensor | None:
        """Computes the plugin's output for states, [..., hidden]; returns None if no domain is in use."""
        return None if self.inner.used is None else self(states)

    def forward(self, states: Tensor) -> Tensor:
        """Computes the plugin's output for states, with the masks of the domain in use."""
        inner, outer = self.inner.used, self.outer.used
        assert inner is not None
        assert outer is not None
        output: Tensor = outer(self.second(inner(relu(self.first(states)))))
        return output


class _Masked:
    """Hooks that multiply the input (`enter`) or the output (`leave`) of a module by the mask of the domain in use."""

    def __init__(self, masks: DomainSets) -> None:
        self.masks = masks

    def enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        used = self.masks.used
        return arguments if used is None else (used(arguments[0]), *arguments[1:])

    def leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        used = self.masks.used
        return output if used is None else used(output)


def attach_unit_masks(model: Any, sets: int, steepest: float) -> None:
    """Masks the units of a model's layers, in place.

    Embeddings start positive, so that a new mask keeps all units of the pretrained model.

    Args:
        model: a model of an architecture that `adapt.model.architecture` supports.
        sets: number of domains with masks.
        steepest: steepness s of a trained mask.

    Raises:
        ModelError: the architecture is not supported.
    """
    for layer in layers_of(model):
        out, outer = layer.part(layer.pattern.attention_out), layer.part(layer.pattern.outer)
        device, heads = outer.weight.device, int(model.config.num_attention_heads)
        units = {"head": heads, "inner": inputs(outer), "output": outputs(outer)}
        masks = {
            kind: DomainSets(UnitMask(count, steepest, False, True, device) for _ in range(sets))
            for kind, count in units.items()
        }
        out.register_forward_pre_hook(_Masked(masks["head"]).enter)
        outer.register_forward_pre_hook(_Masked(masks["inner"]).enter)
        outer.register_forward_hook(_Masked(masks["output"]).leave)
        layer.module.add_module(UNITS, nn.ModuleDict(masks))


def attach_plugins(model: Any, sets: int, width: int, form: str, steepest: float, is_hard: bool) -> None:
    """Adds two plugins to each layer of a model, in place: one for its attention, one for its feed-forward block.

    Args:
        model: a model of an architecture that `adapt.model.architecture` supports.
        sets: number of domains with masks.
        width: number of neurons in each plugin's bottleneck.
        form: `parallel` if plugins read the input of the block, `sequential` if they read its output.
        steepest: steepness s of a trained mask.
        is_hard: whether a trained mask is rounded to 0 and 1.

    Raises:
        ModelError: the architecture is not supported.
    """

    def mask(units: int, device: torch.device) -> UnitMask:
        return UnitMask(units, steepest, is_hard, False, device)

    for layer in layers_of(model):
        plugins = nn.ModuleDict()
        for block in ("attention", "feed_forward"):
            _, last = layer.ends(block)
            plugins[block] = MaskedPlugin(outputs(last), width, sets, mask, last.weight.device)
            add_to_block(layer, block, plugins[block], form == "parallel")
        layer.module.add_module(PLUGINS, plugins)
