"""Parameters that are trained in part: a mask scales an optimizer's update or the gradient, or some rows are held.

A masked parameter stays where it is, and is trained, tied, sharded, saved and resumed like any other. The layer
computes with a tensor that is made from the parameter anew in each pass. In a table with held rows, the first rows get
no gradient while the others learn.
"""

from __future__ import annotations

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
    """How much of a parameter's training gets through.

    Args:
        value: the parameter, where training starts from.
        keep: in [0, 1], of a shape that broadcasts to the parameter's.
        target: `update` computes with start + keep * (parameter - start) and hands its gradient to the parameter as it
            is; `gradient` computes with the parameter and scales its gradient by `keep`.
    """

    start: Tensor | None
    keep: Tensor

    def __init__(self, value: Tensor, keep: Tensor, target: Target) -> None:
        super().__init__()
        start = value.detach().clone() if target == "update" else None
        # not saved in checkpoints: a run that resumes starts from the same weights
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("keep", keep.to(value), persistent=False)

    def now(self, value: Tensor, rows: Tensor | None = None) -> Any:
        """What a layer computes with.

        Args:
            value: the parameter, or some of its rows.
            rows: int64, which; None for all.
        """
        keep = self.keep if rows is None else self.keep[rows]
        if self.start is None:
            return _Gradient.apply(value, keep)  # type: ignore[no-untyped-call]
        start = self.start if rows is None else self.start[rows]
        return _Update.apply(value, start, keep)  # type: ignore[no-untyped-call]


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, start: Tensor, keep: Tensor) -> Tensor:
        return torch.lerp(start, value, keep)  # exactly `value` where keep is 1, and `start` where it is 0

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
    """The `weight` or `bias` that a layer computes with, masked or not; None where it has none."""
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
    """Masks a parameter in every layer that has it; tied ones share the mask. Layers keep their identity and hooks.

    Args:
        model: before an engine wraps it, or a compiler its layers.
        name: the parameter's in the model.
        mask: made of its value.

    Returns:
        All its names in the model.

    Raises:
        ModelError: one of its layers is neither linear nor an embedding.
    """
    value, names = model.get_parameter(name), []
    for layer, module in model.named_modules():
        for part in _PARTS:
            if getattr(module, part, None) is value:
                _mask_part(module, part, mask, f"{layer}.{part}")
                names.append(f"{layer}.{part}")
    return names


def mask_all(model: nn.Module, held: Mapping[str, Tensor], target: Target = "update") -> dict[str, Mask]:
    """Masks parameters, each by 1 less how much it is held. Those that are wholly free stay as they are.

    Args:
        model: as of `set_mask`.
        held: in [0, 1], by the parameter's name, of a shape that broadcasts to the parameter's.
        target: of the masks.

    Returns:
        The masks, by all names of what they mask.
    """
    masks: dict[str, Mask] = {}
    for name, each in held.items():
        if each.any():
            mask = Mask(model.get_parameter(name), 1 - each, target)
            masks |= dict.fromkeys(set_mask(model, name, mask), mask)
    return masks


def computed_with(state: dict[str, Tensor], masks: Mapping[str, Mask]) -> dict[str, Tensor]:
    """What layers compute with in place of their masked parameters, in a model's state."""
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
    """Trains a parameter but for its first rows.

    No gradient reaches them, and nothing decays in the parameter (`adapt.train.optimizer`). So AdamW leaves them where
    they are, bit for bit, at any ZeRO stage.

    Args:
        table: [V, ...], before an engine wraps its model.
        rows: how many stay.
    """

    def held(gradient: Tensor) -> Tensor:
        kept = gradient.clone()
        kept[:rows] = 0
        return kept

    table.requires_grad_(True)
    table.register_hook(held)
    setattr(table, _HELD, True)


def has_held_rows(parameter: Tensor) -> bool:
    """Whether `hold_rows` holds some of its rows."""
    return getattr(parameter, _HELD, False)
