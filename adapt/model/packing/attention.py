"""Computes attention within the documents of a packed sequence, with one function for every encoder and decoder.

The function is registered with transformers' attention interface. On CUDA in bf16 or fp16 it calls torch's flash
attention over all documents at once. Elsewhere it runs scaled dot product attention for one bucket of documents at a
time. The documents of a bucket have about the same length. So almost no work is spent on padding, and none on pairs of
tokens from different documents.

A layer may have a prefix: keys and values that are put before the keys and values of every document.

On CPUs, torch's own dropout takes a tenth of a training step, because it draws one random number per value.
`quick_dropout` uses one random number for four values. Attention and the dropout layers of models use it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from adapt.model.packing import flash
from adapt.model.packing.packed import Bucket, Documents, Layout

NAME = "documents"
_CHANGES_SCORES = "softcap", "s_aux", "position_bias"
"""Options of attention functions with which some architectures change the scores. This module does not support them."""
LONG = 1024
"""Maximum length of documents whose attention weights are stored in memory on CPUs, if there is no dropout [tokens]."""


def use_attention_of_library(model: PreTrainedModel) -> None:
    """Switches a model to transformers' default attention: `sdpa`, or `eager` if the model does not support `sdpa`."""
    for name in ("sdpa", "eager"):
        with suppress(ValueError, ImportError):
            model.set_attn_implementation(name)
            return


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
    """Computes attention within documents. It has the signature of transformers' attention functions.

    Calls without documents use the attention of transformers.

    Args:
        module: the attention layer. Its attribute `is_causal` says whether attention is causal.
        query: queries [1, heads, N, D] of N tokens, with heads of width D.
        key: keys [1, key heads, N, D]. The number of heads is a multiple of the number of key heads.
        value: values [1, key heads, N, D].
        attention_mask: only used for calls without documents.
        scaling: factor of the scores; 1 / sqrt(D) by default.
        dropout: dropout probability of the attention weights.
        documents: the boundaries of the documents.
        sliding_window: two tokens see each other only if their distance is below this number; None for no limit.
        **options: only used for calls without documents.

    Returns:
        The outputs [1, N, heads, D], and None instead of the attention weights.

    Raises:
        NotImplementedError: the model needs an option that this attention does not support.
    """
    prefixes, causal = getattr(module, PREFIXES, None), bool(getattr(module, "is_causal", False))
    causal |= documents is not None and documents.causal
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
    has_flash = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    attend = flash.flash_attention if has_flash else attend_by_bucket
    attended = attend(queries, keys, values, documents, scaling, dropout, causal, sliding_window)
    return (attended if tokens is None else attended.index_select(0, tokens))[None], None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend_by_bucket(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents,
    scaling: float | None,
    dropout: float,
    causal: bool,
    sliding_window: int | None,
) -> Tensor:
    """Computes attention inside each document, with one dense call per bucket of documents of similar length."""
    layout = documents.layout
    sizes = [bucket.rows * bucket.length for bucket in layout.buckets]
    # `split` instead of slices, because the gradient of a slice has the size of the whole tensor
    placed = (_Place.apply(states, layout).split(sizes) for states in (query, key, value))  # type: ignore[no-untyped-call]
    outputs = []
    for bucket, *parts in zip(layout.buckets, *placed, strict=True):
        queries, keys, values = (part.unflatten(0, (bucket.rows, -1)).transpose(1, 2) for part in parts)
        mask = _mask(bucket, causal, sliding_window, query.device)
        attended = _attend(queries, keys, values, mask, dropout, causal and mask is None, scaling)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return taken_back(torch.cat(outputs), layout)


def taken_back(placed: Tensor, layout: Layout) -> Tensor:
    """Copies values from the slots of buckets [P, ...] to tokens in packed order [N, ...]. Padding gets no gradient."""
    in_order: Tensor = _TakeBack.apply(placed, layout)  # type: ignore[no-untyped-call]
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
    """Computes attention within the documents of one bucket, [documents, heads, length, D].

    On CPUs torch's `scaled_dot_product_attention` is 1.5 to 3 times slower than the code below, in bf16 or with
    dropout. So it is only used for long documents without dropout, where it needs no memory for attention weights.
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
    if torch.is_autocast_enabled(device):  # rotary positions return queries and keys in fp32
        query, key, value = (states.to(torch.get_autocast_dtype(device)) for states in (query, key, value))
    with torch.autocast(device, enabled=False):  # autocast would convert the weights to fp32 and back
        scores = (query * (scaling or query.shape[-1] ** -0.5)) @ key.mT
        if mask is not None:
            scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
        return quick_dropout(scores.softmax(-1), dropout) @ value


def _mask(bucket: Bucket, causal: bool, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """Returns a mask of the tokens that each token may see: bool, broadcasts to [documents, heads, length, length].

    Returns None if each token sees its whole document, or (if causal) all tokens before it in the document.
    """
    # causal attention needs no mask of padding, because padding comes after all tokens
    seen = bucket.real[:, None, None, :] if bucket.real is not None and not causal else None
    if sliding_window is None or sliding_window >= bucket.length:
        return seen
    indices = torch.arange(bucket.length, device=device)
    distance = indices[:, None] - indices
    near = (distance.abs() < sliding_window) & (distance >= 0) if causal else distance.abs() < sliding_window
    return near if seen is None else (seen & near) | (distance == 0)  # padding must see a token, else softmax is NaN


class _Place(torch.autograd.Function):
    """Copies the states of tokens [N, heads, D] to the slots of buckets [P, heads, D].

    Plain indexing would be slow, because its backward pass sums over slots. Each token has exactly one slot, so this
    class copies the gradient of the slot instead.
    """

    @staticmethod
    def forward(context: Any, states: Tensor, layout: Layout) -> Tensor:
        context.layout = layout
        return states.index_select(0, layout.there)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(0, context.layout.back), None


class _TakeBack(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, states: Tensor, layout: Layout) -> Tensor:
        context.layout = layout
        return states.index_select(0, layout.back)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        placed = gradient.index_select(0, context.layout.there)
        if context.layout.filling is not None:
            placed.index_fill_(0, context.layout.filling, 0.0)
        return placed, None


@contextmanager
def noting_calls() -> Iterator[list[str]]:
    """Returns a context manager that lists the class names of the layers that call this module's attention.

    If the list stays empty, the model does not use transformers' attention interface.
    """
    callers: list[str] = []

    def recorded(module: nn.Module, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
        callers.append(type(module).__name__)
        return attention(module, *arguments, **options)

    AttentionInterface.register(NAME, recorded)
    try:
        yield callers
    finally:
        AttentionInterface.register(NAME, attention)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # transformers builds the mask for calls without documents


PREFIXES = "prefixes"
"""Name of the submodule of an attention module that stores the prefixes of domains."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def prolong_documents(
    prefix: Any, query: Tensor, key: Tensor, value: Tensor, documents: Documents
) -> tuple[Tensor, Tensor, Tensor, Documents, Tensor]:
    """Puts the keys and values of a prefix before each document of a packed sequence.

    The queries at the prefix's positions are 0, and the results at these positions are not used.

    Args:
        prefix: the layer's prefix.
        query: queries of the N tokens, [N, heads, D].
        key: keys of the tokens, [N, key heads, D].
        value: values of the tokens, [N, key heads, D].
        documents: the boundaries of the documents.

    Returns:
        Queries, keys, values and boundaries of the longer sequence, and the indices of the N tokens in it, int64 [N].
    """
    longer = documents.prolonged(prefix.length)
    keys, values = (states.index_select(0, longer.order) for states in prefix(key, value))
    queries = torch.cat((query.new_zeros(prefix.length, *query.shape[1:]), query)).index_select(0, longer.order)
    return queries, keys, values, longer.documents, longer.tokens


def prolong_rows(
    prefix: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, window: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Puts a prefix before the keys and values of each row of a padded batch, for transformers' own attention.

    Args:
        prefix: the layer's prefix, with P keys.
        query: queries of the last L tokens, [B, heads, L, D].
        key: keys of K tokens, including tokens of earlier calls, [B, key heads, K, D].
        value: values of the K tokens, [B, key heads, K, D].
        mask: mask [B, 1, L, K], either bool or numbers that are added to scores; None if each token sees all tokens, or
            (if causal) all tokens before it.
        causal: whether tokens only see themselves and earlier tokens.
        window: two tokens see each other only if their distance is below this number [tokens]; None for no limit.

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
        indices = torch.arange(seen - count, seen, device=device)[:, None]
        distance = indices - torch.arange(-prefix.length, 0, device=device)
        near = (torch.ones_like(distance, dtype=torch.bool) if window is None else distance < window).expand(
            *mask.shape[:2], -1, -1
        )
        if mask.dtype != torch.bool:
            near = torch.zeros_like(near, dtype=mask.dtype).masked_fill(~near, -torch.inf)
        mask = torch.cat((near, mask), -1)
    return keys, values, mask


_PER_DRAW = 4
"""Number of 16-bit random numbers in one 64-bit number from torch's generator."""


class QuickDropout(nn.Dropout):
    """Dropout layer that uses this module's fast dropout on CPUs, and torch's own dropout on GPUs."""

    def forward(self, input: Tensor) -> Tensor:
        """Sets each value to 0 with probability p (to the nearest 1/65536) and scales the others by 1 / (1 - p)."""
        if input.is_cuda or not self.training:
            return super().forward(input)
        return quick_dropout(input, self.p)


def use_quick_dropout(model: nn.Module) -> None:
    """Replaces the dropout layers of a model with `QuickDropout`."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, QuickDropout(child.p))


def quick_dropout(values: Tensor, p: float) -> Tensor:
    """Applies dropout with probability `p` on the CPU, with random numbers from torch's default generator."""
    dropped: Tensor = _Dropout.apply(values, p) if p else values  # type: ignore[no-untyped-call]
    return dropped


def random_state(device: torch.device) -> list[Tensor]:
    """Returns the state of the random generators from which the next pass on `device` draws its dropout."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def draw_again(state: list[Tensor], device: torch.device) -> None:
    """Restores a state from `random_state`, so that the next pass draws the same dropout again."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, p: float) -> Tensor:
        draws = torch.empty(-(-values.numel() // _PER_DRAW), dtype=torch.int64).random_(-(2**63), None)
        context.save_for_backward(draws)  # the draws take less memory than a mask in the values' type
        context.p = p
        return _dropped(values, draws, p)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (draws,) = context.saved_tensors
        return _dropped(gradient, draws, context.p), None


def _dropped(values: Tensor, draws: Tensor, p: float) -> Tensor:
    numbers = draws.view(torch.int16)[: values.numel()].view(values.shape)
    # `keep` is 0 or 1 in the values' type, because products with bools are slow; addcmul gives keep * values / (1 - p)
    keep = torch.ge(numbers, round(p * 2**16) - 2**15, out=torch.empty_like(values))
    return torch.addcmul(values.new_zeros(()), keep, values, value=1 / (1 - p) if p < 1 else 0.0, out=keep)
