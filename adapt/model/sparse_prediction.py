"""Runs the language-model head only at chosen positions.

The head computes a score for every word of the vocabulary, which is a large part of a small model's work. Masked
language modelling needs scores at only 15% of the positions. So a forward hook on the encoder passes only the hidden
states at these positions to the head. A hook works with every architecture and keeps the model's own forward method, so
DeepSpeed, autocast and gradient checkpointing work as usual.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adapt.model.linear_losses import cross_entropy_and_samples, drawn_from, linear_cross_entropy
from adapt.model.masked_updates import in_use
from adapt.model.packing.packed import Packed
from adapt.model.packing.padded import document_inputs, trunk_of
from adapt.support.errors import ModelError

ATTRIBUTE = "_target_gather"


class TargetGather:
    """The forward hook that selects hidden states. Outside of the context of `only`, it selects all states."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.count: int | None = None  # number of hidden states that the last call returned
        self.kept: list[Tensor] | None = None
        self.is_linear = True
        """Whether the head ends in a linear layer, so that its loss can be computed in blocks."""

    @contextmanager
    def only(self, positions: Tensor) -> Iterator[None]:
        """Returns a context manager inside which the head only gets the hidden states at `positions`, int64 [T]."""
        self.positions, self.count = positions, None
        try:
            yield
        finally:
            self.positions = None

    @contextmanager
    def keeping(self) -> Iterator[list[Tensor]]:
        """Returns a context manager that collects each call's hidden states at all positions, [N, H], in a list."""
        kept: list[Tensor] = []
        self.kept = kept
        try:
            yield kept
        finally:
            self.kept = None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        """Replaces last_hidden_state [B, L, H] in the encoder's output by [1, T, H]."""
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
    """Computes the summed cross entropy of the predictions at some positions of a packed sequence.

    Args:
        model: a transformers model with a language-model head, masked or causal, from `adapt.model.load`; or a wrapper
            (DeepSpeed engine, DistributedDataParallel) with it as `.module`.
        packed: a sequence of N tokens.
        positions: positions to predict, in rising order, int64 [T]. A mask bool [N] is not accepted, because the host
            would have to wait for a GPU to count its positions.
        targets: the tokens to predict at these positions, int64 [T].

    Returns:
        The loss, float32 scalar [nats]. Value and gradients are the same as those of the full computation.

    Raises:
        ModelError: the architecture does not compute its logits from the last hidden state of its `base_model`.
    """
    return _losses(model, packed, positions, targets)[0]


def losses_at(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> Tensor:
    """Computes the loss at each position [nats], float32 [T], without gradients. See `loss_at` for the arguments."""
    with torch.no_grad():
        return _losses(model, packed, positions, targets)[1]


def loss_and_states(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the loss of `loss_at`. Returns the loss, and all tokens' last hidden states from the same pass.

    Args:
        model: see `loss_at`.
        packed: a sequence of N tokens.
        positions: positions to predict, int64 [T]. The head runs only there.
        targets: the tokens to predict at these positions, int64 [T].

    Returns:
        The loss, and the last hidden states [N, H]. Gradients flow through both.
    """
    with gather_of(getattr(model, "module", model)).keeping() as kept:
        loss = loss_at(model, packed, positions, targets)
    return loss, kept[0]


def loss_and_samples(
    model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes the loss of `loss_at`, and draws a token at each position from the distribution of the same pass.

    Args:
        model: see `loss_at`.
        packed: a sequence of N tokens.
        positions: positions to predict, int64 [T].
        targets: the tokens to predict at these positions, int64 [T].
        draws: uniform random numbers in [0, 1), one per position, float64 [T].

    Returns:
        The loss, and the drawn tokens, int64 [T], which have no gradient.
    """
    if not gather_of(getattr(model, "module", model)).is_linear:
        logits = predict_at(model, packed, positions).float()
        return cross_entropy(logits, targets, reduction="sum"), drawn_from(logits.detach().softmax(1), draws)
    drawn: list[Tensor] = []

    def compare(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        total, samples = cross_entropy_and_samples(hidden, weight, bias, targets, draws)
        drawn.append(samples)
        return total[None]

    return compared_at(model, packed, positions, compare)[0], drawn[0]


def states_of(model: nn.Module, packed: Packed, segments: Tensor | None = None) -> Tensor:
    """Computes the last hidden states, [N, H]. Calls the whole model, but runs the head at no position.

    Unlike `adapt.model.states.last_hidden_state`, this function accepts a wrapped model and calls the wrapper. Both
    functions take the same argument `segments`.
    """
    with gather_of(getattr(model, "module", model)).keeping() as kept:
        _forward(model, packed, packed.input_ids.new_zeros(0), segments)
    return kept[0]


def predict_at(model: nn.Module, packed: Packed, positions: Tensor) -> Tensor:
    """Computes the logits at some positions, [T, vocabulary]. The arguments are those of `loss_at`."""
    logits: Tensor = _forward(model, packed, positions).squeeze(0)
    return logits


def _losses(model: nn.Module, packed: Packed, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if not gather_of(getattr(model, "module", model)).is_linear:
        losses = cross_entropy(predict_at(model, packed, positions).float(), targets, reduction="none")
        return losses.sum(), losses.detach()
    by_position: list[Tensor] = []

    def compare(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        total, losses = linear_cross_entropy(hidden, weight, bias, targets)
        by_position.append(losses)
        return total[None]

    return compared_at(model, packed, positions, compare)[0], by_position[0]


def compared_at(
    model: nn.Module, packed: Packed, positions: Tensor, function: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Runs the model with a function in place of the head's last linear layer, and returns the function's result.

    Args:
        model: see `loss_at`.
        packed: a sequence of N tokens.
        positions: positions at which the head runs, int64 [T].
        function: function of the last linear layer's input [T, H], weight [V, H], and bias ([V] or None). It returns
            some numbers [K].

    Returns:
        The numbers [K], with gradients.

    Raises:
        ModelError: the head does not end in a linear layer.
    """
    check_linear_head(getattr(model, "module", model))

    def answer(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        numbers = function(hidden.squeeze(0), weight, bias)
        return numbers.expand(*hidden.shape[:2], -1)  # the shape that the rest of the head expects

    with answering(getattr(model, "module", model), answer):
        logits = _forward(model, packed, positions)
    return logits[0, 0] if len(positions) else logits.sum((0, 1))


def check_linear_head(model: nn.Module, fix: str = "choose another method.kind") -> None:
    """Checks that a model's head ends in a linear layer, for methods that compute scores in blocks.

    Args:
        model: a model after `adapt.model.packing.isolation.keep_documents_apart`.
        fix: advice to the user.

    Raises:
        ModelError: the head changes its scores after its last linear layer.
    """
    if not gather_of(model).is_linear:
        raise ModelError(
            f"the head of {type(model).__name__} changes its scores after its last linear layer, so method.kind distill"
            " and derpp cannot compute them in blocks",
            fix,
        )


@contextmanager
def answering(model: Any, function: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Iterator[None]:
    """Returns a context manager that replaces the head's last linear layer with function(input, weight, bias).

    The function runs within the call of the layer, because ZeRO stage 3 gathers the weights only during that call.
    """
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise unsupported_head(model)
    vars(linear)["forward"] = lambda hidden: function(hidden, in_use(linear, "weight"), in_use(linear, "bias"))
    try:
        yield
    finally:
        del vars(linear)["forward"]


def _forward(model: nn.Module, packed: Packed, positions: Tensor, segments: Tensor | None = None) -> Tensor:
    inner: Any = getattr(model, "module", model)
    gather = gather_of(inner)
    options: dict[str, Any] = {"use_cache": False} if inner.can_generate() else {}
    if segments is not None and getattr(inner.config, "type_vocab_size", 0) > 1:
        options["token_type_ids"] = segments
    with gather.only(positions), document_inputs(inner, packed) as inputs:
        output = model(**inputs, return_dict=True, **options)
    logits: Tensor = output.logits
    if gather.count is None or logits.shape[:2] != torch.Size([1, gather.count]):
        raise unsupported_head(inner)
    return logits


def gather_of(model: Any) -> TargetGather:
    """Returns the hook of a model, and registers it on first use.

    The hook is stored in the encoder, so that a copy of the model has its own hook.
    """
    base = trunk_of(model)
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
    """Returns the error for an architecture whose head does not work with the hook."""
    return ModelError(
        f"{type(model).__name__} does not compute its logits from the last hidden state of its base_model alone",
        "choose an architecture like BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2 or Llama",
    )
