"""Soft masking: what past domains need moves less (DAS, arXiv 2302.03241, section 4.2).

The paper scales the *gradients* of a unit's parameters by 1 - I. Under Adam, whose step does not depend on the scale of
gradients, that hardly does anything. Target `update` scales the step itself: with W = W0 + (1 - I) D, and the gradient
of W handed to D as it is, any optimizer moves D as it would move W without a mask, and so W by exactly (1 - I) of that.
The optimizer's state, and clipping, are those of plain training; weight decay pulls D to 0, so W to W0. `gradient` is
what the paper's code does, for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from adapt.method.base import Method
from adapt.model.units import Values, by_parameter, is_transposed

Target = Literal["update", "gradient"]


class SoftMask(Method):
    """Training that moves a unit's parameters by 1 - I of what it would.

    Args:
        importance: I in [0, 1] of every unit.
        target: what is scaled.
    """

    def __init__(self, importance: Values, target: Target = "update") -> None:
        self._importance = importance
        self._target = target
        self._start: dict[str, tuple[Tensor, Tensor]] = {}

    def prepare_model(self, model: nn.Module, inputs: Mapping[str, Path]) -> None:
        """Masks the model's linear layers. Those whose units are all free stay as they are."""
        masked = {name: each for name, each in by_parameter(model, self._importance).items() if each.any()}
        if self._target == "gradient":
            parameters = dict(model.named_parameters())
            for name, importance in masked.items():
                parameters[name].register_hook(_scaled(1 - importance.to(parameters[name].device)))
            return
        for name in dict.fromkeys(name.rpartition(".")[0] for name in masked):
            module = model.get_submodule(name)
            masks = {part: 1 - masked[f"{name}.{part}"] for part in ("weight", "bias") if f"{name}.{part}" in masked}
            for part, keep in masks.items():
                self._start[f"{name}.{part}"] = module.get_parameter(part).detach().clone().cpu(), keep.cpu()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Moved(module, masks))

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """W in place of D."""
        for name, (start, keep) in self._start.items():
            if name in state:
                state[name] = start + keep * state[name]
        return state


def _scaled(keep: Tensor) -> Any:
    return lambda gradient: gradient * keep.to(gradient.dtype)


class Moved(nn.Module):
    """A linear layer (or GPT-2's transposed one) that is where it was plus a masked movement, its parameters.

    Args:
        module: the layer.
        masks: 1 - I by the name of the parameter, `weight` and perhaps `bias`; what has none is trained as it is.
    """

    def __init__(self, module: Any, masks: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.transposed = is_transposed(module)
        self._masks = tuple(masks)
        for part in ("weight", "bias"):
            value = getattr(module, part)
            if part in masks:
                self.register_buffer(f"start_{part}", value.detach().clone(), persistent=False)
                self.register_buffer(f"keep_{part}", masks[part].to(value), persistent=False)
                value = nn.Parameter(torch.zeros_like(value))
            self.register_parameter(part, value)

    def forward(self, hidden: Tensor) -> Tensor:
        """The layer's output."""
        weight, bias = self.now("weight"), self.now("bias")
        return linear(hidden, weight.T if self.transposed else weight, bias)

    def now(self, part: str) -> Any:
        """The `weight` or `bias` that the layer computes with."""
        value = getattr(self, part)
        if part not in self._masks:
            return value
        return _Movement.apply(value, getattr(self, f"start_{part}"), getattr(self, f"keep_{part}"))  # type: ignore[no-untyped-call]


class _Movement(torch.autograd.Function):
    """start + keep * movement, whose gradient reaches the movement unscaled."""

    @staticmethod
    def forward(context: Any, movement: Tensor, start: Tensor, keep: Tensor) -> Tensor:
        return torch.addcmul(start, keep, movement)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None
