"""Predict at chosen positions only.

The head that turns a hidden state into a score for every word of the vocabulary is a large part of a small model's
work, and masked language modelling needs it at 15% of the positions. So a forward hook on the encoder passes on the
hidden states of those alone. A hook, and not a call of the parts one by one, because it serves every architecture and
leaves the model's own forward in place: DeepSpeed, autocast and gradient checkpointing see nothing unusual.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adapt.errors import ModelError

ATTRIBUTE = "_target_gather"


class TargetGather:
    """The forward hook. It does nothing unless it is told positions."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.count: int | None = None  # hidden states passed on in the last call

    @contextmanager
    def only(self, positions: Tensor) -> Iterator[None]:
        """Inside the block, pass on only the hidden states at these positions."""
        self.positions, self.count = positions, None
        try:
            yield
        finally:
            self.positions = None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        """Replace last_hidden_state [B, L, H] by [1, T, H], in the encoder's output."""
        if self.positions is None:
            return output
        chosen = output[0][self.positions].unsqueeze(0)
        self.count = chosen.shape[1]
        if isinstance(output, tuple):
            return (chosen, *output[1:])
        output.last_hidden_state = chosen
        return output


def predict_at(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor, **inputs: Tensor
) -> Tensor:
    """The logits at some positions, without computing them at the others.

    Args:
        model: a transformers model with a language-model head, masked or causal, or a wrapper (DeepSpeed engine,
            DistributedDataParallel) with it as `.module`.
        input_ids: int64 [B, L].
        attention_mask: [B, L], 1 for tokens and 0 for padding, or None for no padding.
        positions: bool [B, L], where to predict.
        **inputs: further inputs of the model, for example position_ids.

    Returns:
        [T, vocabulary], T = positions.sum(), row by row from left to right, like `input_ids[positions]`. Logits and
        gradients are those of the full computation.

    Raises:
        ModelError: the architecture does not compute its logits from the last hidden state of its `base_model`.
    """
    inner: Any = getattr(model, "module", model)
    gather = gather_of(inner)
    options = {"use_cache": False} if inner.can_generate() else {}
    with gather.only(positions):
        output = model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **options, **inputs)
    logits: Tensor = output.logits
    if gather.count is None or logits.shape[:2] != torch.Size([1, gather.count]):
        raise unsupported(inner)
    return logits.squeeze(0)


def gather_of(model: Any) -> TargetGather:
    """The hook of a model, registered on first use. It is kept on the encoder: a copy of the model has its own."""
    base = model.base_model
    if base is model or not isinstance(base, nn.Module):
        raise unsupported(model)
    gather = getattr(base, ATTRIBUTE, None)
    if gather is None:
        gather = TargetGather()
        base.register_forward_hook(gather)
        setattr(base, ATTRIBUTE, gather)
    assert isinstance(gather, TargetGather)
    return gather


def unsupported(model: nn.Module) -> ModelError:
    """The error for an architecture whose head cannot be fed by the hook."""
    return ModelError(
        f"{type(model).__name__} does not compute its logits from the last hidden state of its base_model alone",
        "choose an architecture like BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2 or Llama",
    )
