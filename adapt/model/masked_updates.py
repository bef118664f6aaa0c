"""Restricts the training of parameters: scales updates or gradients by a mask, or keeps a table's first rows fixed.

A masked parameter stays in its module, and is trained, tied, sharded, saved and resumed like any other parameter. In
each pass the layer computes with a tensor that is derived from the parameter and the mask. In a table with fixed rows,
the first rows get no gradient while the other rows are trained.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from adapt.support.errors import ModelError

Target = Literal["update", "gradient"]
_PARTS = "weight", "bias"


class Mask(nn.Module):
    """Scales the update or the gradient of a parameter, elementwise.

    Args:
        value: the parameter at the start of training.
        keep: factor of each element's update or gradient, from 0 (does not change) to 1 (changes freely), in a shape
            that broadcasts to the parameter's shape.
        target: `update`: layers use start + keep * (parameter - start), and the parameter gets the gradient unchanged.
            `gradient`: layers use the parameter itself, and its gradient is multiplied by `keep`.
    """

    start: Tensor | None
    keep: Tensor

    def __init__(self, value: Tensor, keep: Tensor, target: Target) -> None:
        super().__init__()
        start = value.detach().clone() if target == "update" else None
        # not saved in checkpoints, because a resumed run starts from the same weights
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("keep", keep.to(value), persistent=False)

    def now(self, value: Tensor, rows: Tensor | None = None) -> Any:
        """Returns the tensor that a layer uses in place of the parameter.

        Args:
            value: the parameter, or some of its rows.
            rows: indices of these rows, int64; None if `value` is the whole parameter.
        """
        keep = self.keep if rows is None else self.keep[rows]
        if self.start is None:
            return _Gradient.apply(value, keep)  # type: ignore[no-untyped-call]
        start = self.start if rows is None else self.start[rows]
        return _Update.apply(value, start, keep)  # type: ignore[no-untyped-call]


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, start: Tensor, keep: Tensor) -> Tensor:
        return torch.lerp(start, value, keep)  # exactly `value` if keep is 1, exactly `start` if it is 0

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, keep: Tensor) -> Tensor:
        context.save_for_backward(keep)
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = context.saved_tensors
        return gradient * keep, None


def in_use(module: nn.Module, part: str) -> Any:
    """Returns the `weight` or `bias` that a layer uses, after any mask. None if the layer has no such parameter."""
    mask, value = getattr(module, f"{part}_mask", None), getattr(module, part)
    return value if mask is None else mask.now(value)


class _MaskedLinear(nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, in_use(self, "weight"), in_use(self, "bias"))


class _MaskedConv1D(Conv1D):
    def forward(self, hidden: Tensor) -> Tensor:
        flat = torch.addmm(in_use(self, "bias"), hidden.view(-1, self.nx), in_use(self, "weight"))
        return flat.view(*hidden.shape[:-1], self.nf)


class _MaskedEmbedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.weight_mask.now(super().forward(ids), ids)  # type: ignore[operator, union-attr]
        return rows


_MASKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _MaskedLinear,
    Conv1D: _MaskedConv1D,
    nn.Embedding: _MaskedEmbedding,
}


def set_mask(model: nn.Module, name: str, mask: Mask) -> list[str]:
    """Masks a parameter in every layer that uses it.

    Tied layers share the mask. The layers stay the same objects with the same hooks.

    Args:
        model: the model, before an engine wraps it or its layers are compiled.
        name: name of the parameter in the model.
        mask: a mask of the parameter's value.

    Returns:
        All names of the parameter in the model.

    Raises:
        ModelError: a layer with this parameter is neither linear nor an embedding.
    """
    value, names = model.get_parameter(name), []
    for layer, module in model.named_modules():
        for part in _PARTS:
            if getattr(module, part, None) is value:
                _mask_part(module, part, mask, f"{layer}.{part}")
                names.append(f"{layer}.{part}")
    return names


def mask_all(model: nn.Module, held: Mapping[str, Tensor], target: Target = "update") -> dict[str, Mask]:
    """Masks parameters with `keep` = 1 - `held`. A parameter whose `held` is 0 everywhere gets no mask.

    Args:
        model: see `set_mask`.
        held: for each parameter name, values from 0 (free) to 1 (fixed), in a shape that broadcasts to the parameter's.
        target: target of the masks (see `Mask`).

    Returns:
        The masks, keyed by all names of the masked parameters.
    """
    masks: dict[str, Mask] = {}
    for name, share in held.items():
        if share.any():
            mask = Mask(model.get_parameter(name), 1 - share, target)
            masks |= dict.fromkeys(set_mask(model, name, mask), mask)
    return masks


def computed_with(state: dict[str, Tensor], masks: Mapping[str, Mask]) -> dict[str, Tensor]:
    """Replaces masked parameters in a model's state with the tensors that layers use in their place."""
    for name, mask in masks.items():
        if name in state:
            state[name] = mask.now(state[name].to(mask.keep.device)).cpu()
    return state


def _mask_part(module: nn.Module, part: str, mask: Mask, name: str) -> None:
    kind = type(module)
    if kind not in (*_MASKED, *_MASKED.values()):
        raise ModelError(
            f"{name} cannot be masked: its layer is a {kind.__name__}",
            "choose an architecture whose layers are torch's Linear and Embedding, or GPT-2's Conv1D",
        )
    module.__class__ = _MASKED.get(kind, kind)
    module.add_module(f"{part}_mask", mask)


_HELD = "_has_held_rows"


def hold_rows(table: nn.Parameter, rows: int) -> None:
    """Holds the first rows of a parameter fixed while the other rows are trained.

    The fixed rows get no gradient, and the parameter has no weight decay (`adapt.train.optimizer`). So AdamW leaves the
    fixed rows unchanged, bit for bit, at any ZeRO stage.

    Args:
        table: a parameter [V, ...], before an engine wraps its model.
        rows: number of fixed rows.
    """

    def held(gradient: Tensor) -> Tensor:
        cleared = gradient.clone()
        cleared[:rows] = 0
        return cleared

    table.requires_grad_(True)
    table.register_hook(held)
    setattr(table, _HELD, True)


def has_held_rows(parameter: Tensor) -> bool:
    """Whether `hold_rows` holds some rows of a parameter fixed."""
    return getattr(parameter, _HELD, False)
