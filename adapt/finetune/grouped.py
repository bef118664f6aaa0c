"""Attention over small batches, in few different shapes.

On CPUs, oneDNN compiles a kernel for every shape of matrices it meets, which takes longer (0.4 to 0.8 ms) than small
matrices take to multiply. Batches of 16 examples have new lengths in every step; so the sequence is filled to a round
number of tokens, and attention looks at groups of a fixed number of examples, filled to a round length.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from adapt.model.packing.packed import Bucket, Documents, sent

SEQUENCE = 64
"""The sequence is filled to a multiple of this [tokens]."""
GROUP = 4
"""So many documents are attended to together."""
LENGTH = 16
"""The documents of a group are filled to a multiple of this [tokens]."""


class Grouped(Documents):
    """Documents that are attended to in small groups of neighbouring lengths."""

    @cached_property
    def _layout(self) -> tuple[list[Bucket], Tensor, Tensor, Tensor | None]:
        ends = self.known.numpy().astype(np.int64)
        begins, lengths = ends[:-1], np.diff(ends)
        order = np.argsort(lengths, kind="stable")
        buckets, taken, real = [], [], []
        for first in range(0, len(order), GROUP):
            members = order[first : first + GROUP, None]
            longest = -(-int(lengths[members[-1, 0]]) // LENGTH) * LENGTH
            places = np.arange(longest)
            inside = places < lengths[members]
            buckets.append(Bucket(len(members), longest, sent(torch.from_numpy(inside), self.device)))
            taken.append(np.where(inside, begins[members] + places, 0).ravel())
            real.append(inside.ravel())
        tokens, occupied = np.concatenate(taken), np.concatenate(real)
        back = np.empty(ends[-1], np.int64)
        back[tokens[occupied]] = np.flatnonzero(occupied)
        filling = np.flatnonzero(~occupied)
        on_device = [sent(torch.from_numpy(indices), self.device) for indices in (tokens, back, filling)]
        return buckets, on_device[0], on_device[1], on_device[2]
