"""Refuses weights that are not numbers, or infinite, and names them: a single one makes every loss of a model nan."""

from __future__ import annotations

import torch
from torch import Tensor

from adapt.errors import ModelError

AGAIN = "copy or download the model again; if you trained it, take an earlier checkpoint, or a lower learning rate"


def check_finite(tensor: Tensor, name: str, of: str, fix: str = AGAIN) -> None:
    """Refuses a tensor with a value that is nan or infinite. It reads the tensor once, and makes no copy of it.

    Args:
        tensor: of any type; whole numbers are always finite.
        name: of the tensor.
        of: the model or file that it belongs to, for the message.
        fix: what to do about it.

    Raises:
        ModelError: names the tensor, and how many of its values are not finite.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    ends = torch.stack(torch.aminmax(tensor.detach()))  # both are nan where a value is
    if ends.isfinite().all():
        return
    wrong, count = {"nan": tensor.isnan().sum(), "infinite": tensor.isinf().sum()}, tensor.numel()
    told = " and ".join(f"{int(number):,} {kind}" for kind, number in wrong.items() if number)
    raise ModelError(f"{of}: the tensor {name} has values that are not finite: {told} of {count:,}", fix)
