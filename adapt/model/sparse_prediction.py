"""Predict at chosen positions only.

The head that turns a hidden state into a score for every word of the vocabulary is a large part of a small model's
work, and masked language modelling needs it at 15% of the positions. So a forward hook on the encoder passes on the
hidden states of those alone. A hook, and not a call of the parts one by one, because it serves every architecture and
leaves the model's own forward in place: DeepSpeed, autocast and gradient checkpointing see nothing unusual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.architecture import first_position
from adapt.model.linear_losses import linear_cross_entropy
from adapt.model.masked_updates import in_use
from adapt.model.packing.packed import Packed
from adapt.support.errors import ModelError

ATTRIBUTE = "_target_gather"


class TargetGather:
    """The forward hook. It does nothing unless it is told positions."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.count: int | None = None  # the hidden states that the last call passed on
        self.kept: list[Tensor] | None = None

    @contextmanager
    def only(self, positions: Tensor) -> Iterator[None]:
        """Inside the block, pass on only the hidden states at these positions, int64 [T]."""
        self.positions, self.count = positions, None
        try:
            yield
        finally:
            self.positions = None

    @contextmanager
    def keeping(self) -> Iterator[list[Tensor]]:
        """Inside the block, the list gets the hidden states at all positions, [N, H], of each call."""
        kept: list[Tensor] = []
        self.kept = kept
        try:
            yield kept
        finally:
            self.kept = None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        """Replace last_hidden_state [B, L, H] by [1, T, H], in the encoder's output."""
        if self.positions is None:
            return output
        if self.kept is not None:
            self.kept.append(output[0].squeeze(0))
        chosen = output[0].index_select(1, self.positions)
        self.count = chosen.shape[1]
        if isinstance(output, tuple):
            return (chosen, *output[1:])
        output.last_hidden_state = chosen
        return output


def loss_at(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> Tensor:
    """Summed cross entropy of the predictions at some positions of a packed sequence.

    Args:
        model: a transformers model with a language-model head, masked or causal, made ready by
            `adapt.model.load`, or a wrapper (DeepSpeed engine, DistributedDataParallel) with it as `.module`.
        packed: N tokens.
        positions: int64 [T], where to predict, from left to right. Numbers and not bool [N], which a GPU would have to
            count before the host can go on.
        targets: int64 [T], the tokens to predict there.

    Returns:
        float32 scalar [nats]. Value and gradients are those of the full computation.

    Raises:
        ModelError: the architecture does not compute its logits from the last hidden state of its `base_model`.
    """
    return _losses(model, packed, positions, targets)[0]


def losses_at(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> Tensor:
    """The loss of each position by itself, without gradients, float32 [T]."""
    with torch.no_grad():
        return _losses(model, packed, positions, targets)[1]


def loss_and_states(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of `loss_at`, and what the encoder made of all tokens in the same pass.

    Args:
        model: as of `loss_at`.
        packed: N tokens.
        positions: int64 [T], where to predict; the head runs there alone.
        targets: int64 [T].

    Returns:
        The loss, and the last hidden states [N, H]. Gradients flow through both.
    """
    with gather_of(getattr(model, "module", model)).keeping() as kept:
        loss = loss_at(model, packed, positions, targets)
    return loss, kept[0]


def states_of(model: nn.Module, packed: Packed) -> Tensor:
    """The last hidden states alone, [N, H], by a call of the whole model whose head has nothing to do.

    Unlike `adapt.model.states.last_hidden_state` it takes a wrapped model, and the wrapper does its work.
    """
    with gather_of(getattr(model, "module", model)).keeping() as kept:
        _forward(model, packed, packed.input_ids.new_zeros(0))
    return kept[0]


def predict_at(model: nn.Module, packed: Packed, positions: Tensor) -> Tensor:
    """The logits at some positions, [T, vocabulary]; arguments as of `loss_at`."""
    logits: Tensor = _forward(model, packed, positions).squeeze(0)
    return logits


def _losses(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    by_position: list[Tensor] = []

    def compare(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        total, losses = linear_cross_entropy(hidden, weight, bias, targets)
        by_position.append(losses)
        return total[None]

    return compared_at(model, packed, positions, compare)[0], by_position[0]


def compared_at(
    model: nn.Module, packed: Packed, positions: Tensor, function: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Some numbers that are computed of the head's last linear layer, in place of the logits.

    Args:
        model: as of `loss_at`.
        packed: N tokens.
        positions: int64 [T], where the head runs.
        function: gets the layer's input [T, H], its weight [V, H] and its bias [V] or None; gives some numbers [K].

    Returns:
        [K]. Gradients flow.
    """

    def answer(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        numbers = function(hidden.squeeze(0), weight, bias)
        return numbers.expand(*hidden.shape[:2], -1)  # the model expects this shape; all positions have the same

    with answering(getattr(model, "module", model), answer):
        logits = _forward(model, packed, positions)
    return logits[0, 0] if len(positions) else logits.sum((0, 1))


@contextmanager
def answering(model: Any, function: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Iterator[None]:
    """Inside the block, the model's last linear layer gives function(input, weight, bias).

    It is asked for losses in place of logits from within its own call, so that whatever surrounds that call (ZeRO 3
    brings the weights for just that long) does its work.
    """
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise unsupported_head(model)
    vars(linear)["forward"] = lambda hidden: function(hidden, in_use(linear, "weight"), in_use(linear, "bias"))
    try:
        yield
    finally:
        del vars(linear)["forward"]


def _forward(model: nn.Module, packed: Packed, positions: Tensor) -> Tensor:
    inner: Any = getattr(model, "module", model)
    gather = gather_of(inner)
    options = {"use_cache": False} if inner.can_generate() else {}
    with gather.only(positions):
        output = model(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids + first_position(inner.config),
            documents=packed.documents,
            attention_mask=no_mask(packed.input_ids.device),
            return_dict=True,
            **options,
        )
    logits: Tensor = output.logits
    if gather.count is None or logits.shape[:2] != torch.Size([1, gather.count]):
        raise unsupported_head(inner)
    return logits


def no_mask(device: torch.device) -> Tensor:
    """A mask of four dimensions, which tells transformers to build none; attention looks at documents instead."""
    return torch.zeros(1, 1, 1, 1, device=device)


def gather_of(model: Any) -> TargetGather:
    """The hook of a model, registered on first use. It is kept on the encoder: a copy of the model has its own."""
    base = model.base_model
    if base is model or not isinstance(base, nn.Module):
        raise unsupported_head(model)
    gather = getattr(base, ATTRIBUTE, None)
    if gather is None:
        gather = TargetGather()
        base.register_forward_hook(gather)
        setattr(base, ATTRIBUTE, gather)
    assert isinstance(gather, TargetGather)
    return gather


def unsupported_head(model: nn.Module) -> ModelError:
    """The error for an architecture whose head cannot be fed by the hook."""
    return ModelError(
        f"{type(model).__name__} does not compute its logits from the last hidden state of its base_model alone",
        "choose an architecture like BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2 or Llama",
    )
