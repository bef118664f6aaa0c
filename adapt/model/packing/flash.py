"""Calls torch's flash attention for packed documents on CUDA, with dropout on the attention weights.

The public function `torch.nn.attention.varlen.varlen_attn` calls the same operator, but without dropout, which BERT and
RoBERTa have. So this module calls the operator itself.
"""

import torch
from torch import Tensor

from adapt.model.packing.packed import Documents

attention_operator = torch.ops.aten._flash_attention_forward
ALIGNMENT = 8
"""The operator only accepts heads whose width is a multiple of this number."""


@torch.compiler.disable  # type: ignore[untyped-decorator]  # tracing it failed on a GPU
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents,
    scaling: float | None,
    dropout: float,
    causal: bool,
    sliding_window: int | None,
) -> Tensor:
    """Computes attention within documents. All tensors are in bf16 or fp16 on CUDA.

    Args:
        query: queries [N, heads, D] of N tokens, with heads of width D.
        key: keys [N, key heads, D]. The number of heads is a multiple of the number of key heads.
        value: values [N, key heads, D].
        documents: the boundaries of the documents.
        scaling: factor of the scores; 1 / sqrt(D) by default.
        dropout: dropout probability of the attention weights.
        causal: whether tokens only see themselves and earlier tokens.
        sliding_window: two tokens see each other only if their distance is below this number; None for no limit.

    Returns:
        The outputs [N, heads, D].
    """
    width = query.shape[-1]
    if padding := -width % ALIGNMENT:  # zeros change neither scores nor the first D output columns
        query, key, value = (torch.nn.functional.pad(states, (0, padding)) for states in (query, key, value))
    reach = -1 if sliding_window is None else sliding_window - 1
    attended, *_ = attention_operator(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        documents.cumulative,
        documents.cumulative,
        documents.longest,
        documents.longest,
        dropout,
        causal,
        False,
        scale=width**-0.5 if scaling is None else scaling,
        window_size_left=reach,
        window_size_right=0 if causal else reach,
    )
    assert isinstance(attended, Tensor)
    return attended[..., :width]
