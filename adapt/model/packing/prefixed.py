"""Attention in layers that have a prefix: keys and values that stand before those of every document."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.packing.packed import Documents

PREFIXES = "prefixes"
"""What a module that calls attention calls the prefixes of its domains."""


def prefix_of(module: nn.Module) -> Any:
    """The prefix that a module uses (`adapt.model.additions.prefixes`); None for none."""
    prefixes = getattr(module, PREFIXES, None)
    return None if prefixes is None else prefixes.used


@torch.compiler.disable  # type: ignore[untyped-decorator]
def prolong_documents(
    prefix: Any, query: Tensor, key: Tensor, value: Tensor, documents: Documents
) -> tuple[Tensor, Tensor, Tensor, Documents, Tensor]:
    """Documents that begin with the prefix, whose own queries are 0 and whose results nobody takes.

    Args:
        prefix: of the layer.
        query: [N, heads, D].
        key: [N, key heads, D].
        value: like key.
        documents: the boundaries.

    Returns:
        The three and the boundaries, longer; and the places of the N tokens, int64 [N].
    """
    longer = documents.prolonged(prefix.length)
    keys, values = (states.index_select(0, longer.order) for states in prefix(key, value))
    queries = torch.cat((query.new_zeros(prefix.length, *query.shape[1:]), query)).index_select(0, longer.order)
    return queries, keys, values, longer.documents, longer.tokens


def prolong_rows(
    prefix: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, window: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows as transformers has them, with the prefix before their keys.

    Args:
        prefix: of the layer.
        query: [B, heads, L, D], of the last L tokens.
        key: [B, key heads, K, D], also of tokens of earlier calls.
        value: like key.
        mask: [B, 1, L, K], bool or to be added to scores; None if every token sees all, or all before it.
        causal: whether it is the latter.
        window: tokens further apart than this, less one, do not see each other; None for no limit.

    Returns:
        Keys and values [B, key heads, P + K, D], and the mask [B, 1, L, P + K].
    """
    rows = [prefix(k.transpose(0, 1), v.transpose(0, 1)) for k, v in zip(key, value, strict=True)]
    keys, values = (torch.stack(parts).transpose(1, 2) for parts in zip(*rows, strict=True))
    count, seen, device = query.shape[2], key.shape[2], query.device
    if mask is None and (causal or window is not None):
        mask = torch.ones(1, 1, count, seen, dtype=torch.bool, device=device)
        mask = mask.tril(seen - count) if causal else mask
    if mask is not None:
        places = torch.arange(seen - count, seen, device=device)[:, None]
        apart = places - torch.arange(-prefix.length, 0, device=device)
        near = (torch.ones_like(apart, dtype=torch.bool) if window is None else apart < window).expand(
            *mask.shape[:2], -1, -1
        )
        if mask.dtype != torch.bool:
            near = torch.zeros_like(near, dtype=mask.dtype).masked_fill(~near, -torch.inf)
        mask = torch.cat((near, mask), -1)
    return keys, values, mask
