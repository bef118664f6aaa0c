"""Attention that keeps the documents of a packed sequence apart: one function for every encoder and decoder.

The function is registered with transformers' attention interface. On CUDA it calls torch's variable-length flash
attention. On CPU, and for models with dropout on attention weights (which that kernel lacks), it calls scaled dot
product attention for documents of about one length at a time. So nothing is computed between documents, and almost
nothing for padding.

A layer may have a prefix: keys and values that come before those of every document.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from adapt.model.packing.dropout import dropout as quick_dropout
from adapt.model.packing.packed import Bucket, Documents

NAME = "documents"
_CHANGES_SCORES = "softcap", "s_aux", "position_bias"
"""Options that would change scores: some architectures set them, and this attention cannot follow."""
LONG = 1024
"""Documents above this length [tokens] do not have their attention weights in memory, where that can be avoided."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    documents: Documents | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: inside documents where they are given, else its own.

    Args:
        module: the attention layer; says whether it is causal.
        query: [1, heads, N, D].
        key: [1, key heads, N, D], of which the heads are a multiple.
        value: like key.
        attention_mask: used for calls without documents only.
        scaling: factor of the scores; 1 / sqrt(D) by default.
        dropout: of the attention weights.
        documents: where each document begins and ends.
        sliding_window: tokens further apart than this, less one, do not see each other; None for no limit.
        **options: passed on for calls without documents.

    Returns:
        [1, N, heads, D], and no weights.

    Raises:
        NotImplementedError: the model asks for attention of another kind.
    """
    prefixes, causal = getattr(module, PREFIXES, None), bool(getattr(module, "is_causal", False))
    prefix = None if prefixes is None else prefixes.used
    if documents is None:
        if prefix is not None:
            key, value, attention_mask = prolong_rows(prefix, query, key, value, attention_mask, causal, sliding_window)
        options |= {"scaling": scaling, "dropout": dropout, "sliding_window": sliding_window}
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
    if unknown := [name for name in _CHANGES_SCORES if options.get(name) is not None]:
        raise NotImplementedError(f"attention with {', '.join(unknown)}")
    queries, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))  # [N, heads, D]
    tokens = None
    if prefix is not None:
        queries, keys, values, documents, tokens = prolong_documents(prefix, queries, keys, values, documents)
    if query.is_cuda and dropout == 0.0 and query.dtype in (torch.bfloat16, torch.float16):
        attended = _variable_length(queries, keys, values, documents, scaling, causal, sliding_window)
    else:
        attended = _by_bucket(queries, keys, values, documents, scaling, dropout, causal, sliding_window)
    return (attended if tokens is None else attended.index_select(0, tokens))[None], None


def _variable_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents,
    scaling: float | None,
    causal: bool,
    sliding_window: int | None,
) -> Tensor:
    reach = -1 if sliding_window is None else sliding_window - 1
    ends, longest = documents.cumulative, documents.longest
    attended = varlen.varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(reach, 0 if causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, Tensor)  # a pair where more is asked for
    return attended


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _by_bucket(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents,
    scaling: float | None,
    dropout: float,
    causal: bool,
    sliding_window: int | None,
) -> Tensor:
    sizes = [bucket.documents * bucket.length for bucket in documents.buckets]
    # split, since the gradient of a slice is as large as all of them, and added to that of the others
    placed = (_Place.apply(states, documents).split(sizes) for states in (query, key, value))  # type: ignore[no-untyped-call]
    outputs = []
    for bucket, *parts in zip(documents.buckets, *placed, strict=True):
        queries, keys, values = (part.unflatten(0, (bucket.documents, -1)).transpose(1, 2) for part in parts)
        mask = _mask(bucket, causal, sliding_window, query.device)
        attended = _attend(queries, keys, values, mask, dropout, causal and mask is None, scaling)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    in_order: Tensor = _TakeBack.apply(torch.cat(outputs), documents)  # type: ignore[no-untyped-call]
    return in_order


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scaling: float | None,
) -> Tensor:
    """Attends within the documents of one bucket, [documents, heads, length, D].

    On CPUs torch's function is 1.5 to 3 times slower in bf16, and wherever there is dropout; without dropout it does
    not need memory for the weights of long documents.
    """
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    if query.is_cuda or (dropout == 0.0 and length > LONG):
        return scaled_dot_product_attention(
            query, key, value, mask, dropout, causal, scale=scaling, enable_gqa=groups > 1
        )
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if causal:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    device = query.device.type
    if torch.is_autocast_enabled(device):  # positions that are turned (RoPE) leave queries and keys in fp32
        query, key, value = (states.to(torch.get_autocast_dtype(device)) for states in (query, key, value))
    with torch.autocast(device, enabled=False):  # it would turn the weights to fp32 and back
        scores = (query * (scaling or query.shape[-1] ** -0.5)) @ key.mT
        if mask is not None:
            scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
        return quick_dropout(scores.softmax(-1), dropout) @ value


def _mask(bucket: Bucket, causal: bool, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """What each token may see, bool, to broadcast to [documents, heads, length, length].

    None if it may see all of its document, or all that stands before it.
    """
    # filling comes last, so causal attention does not see it anyway
    seen = bucket.real[:, None, None, :] if bucket.real is not None and not causal else None
    if sliding_window is None or sliding_window >= bucket.length:
        return seen
    places = torch.arange(bucket.length, device=device)
    apart = places[:, None] - places
    near = (apart.abs() < sliding_window) & (apart >= 0) if causal else apart.abs() < sliding_window
    return near if seen is None else (seen & near) | (apart == 0)  # filling sees itself: softmax needs something


class _Place(torch.autograd.Function):
    """Copies [N, heads, D] to the places of the buckets, [P, heads, D].

    Plain indexing would add gradients up, which costs time; here each token has one place, so one gradient.
    """

    @staticmethod
    def forward(context: Any, states: Tensor, documents: Documents) -> Tensor:
        context.documents = documents
        return states.index_select(0, documents.there)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(0, context.documents.back), None


class _TakeBack(torch.autograd.Function):
    """Brings values at the places of buckets back to the tokens, [N, heads, D]. No gradient goes to padding."""

    @staticmethod
    def forward(context: Any, states: Tensor, documents: Documents) -> Tensor:
        context.documents = documents
        return states.index_select(0, documents.back)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        placed = gradient.index_select(0, context.documents.there)
        if context.documents.filling is not None:
            placed.index_fill_(0, context.documents.filling, 0.0)
        return placed, None


@contextmanager
def noting_calls() -> Iterator[list[str]]:
    """In the block, notes which layers call this attention. A model of which none does has attention of its own."""
    callers: list[str] = []

    def noted(module: nn.Module, *given: Any, **options: Any) -> tuple[Tensor, None]:
        callers.append(type(module).__name__)
        return attention(module, *given, **options)

    AttentionInterface.register(NAME, noted)
    try:
        yield callers
    finally:
        AttentionInterface.register(NAME, attention)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # calls without documents get transformers' mask


PREFIXES = "prefixes"
"""What a module that calls attention calls the prefixes of its domains."""


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
