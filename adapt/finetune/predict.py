"""Run examples through a function in few large passes, similar lengths together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from adapt.finetune.examples import ExampleBatch, Examples

PASS_TOKENS = 8192
"""At most this many tokens pass a device at once; a longer example passes alone."""


@torch.inference_mode()
def in_passes(function: Callable[[ExampleBatch], Tensor], examples: Examples, device: torch.device) -> Tensor:
    """What a function gives for each unit, [U, ...], on the CPU, in the examples' order.

    Args:
        function: a batch to [its units, ...].
        examples: of a split.
        device: where to run.
    """
    units = examples.units
    begins = np.cumsum(units) - units
    parts, places = [], []
    for chosen in _passes(np.diff(examples.ends)):
        parts.append(function(examples.batch(chosen, device)).cpu())
        inside = np.arange(units[chosen].sum()) - (np.cumsum(units[chosen]) - units[chosen]).repeat(units[chosen])
        places.append(inside + begins[chosen].repeat(units[chosen]))
    values = torch.cat(parts)
    ordered = torch.empty_like(values)
    ordered[torch.from_numpy(np.concatenate(places))] = values
    return ordered


def _passes(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """The indices of the examples of each pass, short examples first."""
    order = np.argsort(lengths, kind="stable")
    sums = np.cumsum(lengths[order])
    begin = 0
    while begin < len(order):
        before = sums[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, before + PASS_TOKENS, side="right")))
        yield order[begin:end]
        begin = end
