"""Tests whether a model can compute packed documents, and otherwise makes it compute documents as rows.

If a model keeps the documents of a packed sequence isolated from each other, documents are packed. Otherwise they
become rows: several documents per row if the model accepts a mask for each pair of tokens, else one padded row per
document. If padding changes the model's outputs, only rows of exactly the same length share a pass.

The attention of an encoder can also be made causal, for a phase of next-token prediction.
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeGuard

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel

from adapt.model.additions.domain_modules import without_sets
from adapt.model.additions.table import additions_of
from adapt.model.architecture import Way
from adapt.model.packing import attention, padded
from adapt.model.packing.packed import Packed
from adapt.model.safeguards import quiet
from adapt.model.sparse_prediction import answering, check_linear_head, gather_of, losses_at, predict_at
from adapt.model.states import last_hidden_state
from adapt.model.tokenizer import is_decoder, sees_both_sides
from adapt.support.errors import AdaptError, ModelError

_LENGTHS = 3, 5
_LONG = 70
"""Length of the long document of the check [tokens]. It is longer than most attention windows and blocks, unlike the
other documents of the check."""
APART = "cannot keep documents separate: their outputs change when they are computed together"
_ANSWER = 1000.0
_TOLERANCE = 1e-4
_NOISE = 1e-5
"""Losses that differ by at most this count as equal, because the difference can come from rounding [nats]. For hidden
states, this is a share of the largest number."""
Outputs = Callable[[list[torch.Tensor]], torch.Tensor]
"""Function that computes the losses [N] or hidden states [N, H] of the N tokens of some documents."""


def keep_documents_apart(model: PreTrainedModel) -> Way:
    """Makes a model keep the documents of a packed sequence isolated, and checks that its losses stay the same.

    Some architectures cannot keep packed or padded documents isolated. Examples are models that express positions as a
    bias between pairs of tokens, models whose attention does not use transformers' attention interface or needs
    unsupported options of this interface, and models with layers that mix neighbouring tokens. Then the losses of short
    documents change when the documents are packed or padded.

    Args:
        model: a language model in evaluation mode, on any device. It is changed in place.

    Returns:
        The way in which the model accepts documents.

    Raises:
        ModelError: for each way, the losses differ from the losses of documents in separate calls, or the model raised
            an error; losses are not finite; or the model sees the tokens that it has to predict.
    """
    gather, documents = gather_of(model), _documents(model)
    gather.is_linear = False

    def together(texts: list[torch.Tensor]) -> torch.Tensor:
        packed = Packed.joined(*map(Packed.single, texts))
        return losses_at(model, packed, torch.arange(packed.tokens, device=model.device), torch.cat(texts))

    with without_sets(model):  # added parameters may change losses
        way, expected = _keep_apart(model, documents, lambda texts: _separate_losses(model, texts), together)
        gather.is_linear = _ends_in_linear_layer(model, documents)
        try:
            gather.is_linear = gather.is_linear and _is_close(together(documents), expected)
        except Exception as raised:  # an unusual head may raise any type of error
            raise _refused(model, raised) from raised
    return way


def keep_states_apart(model: Any) -> Way:
    """Does the same as `keep_documents_apart` for a model without its head, by its hidden states.

    Raises:
        ModelError: for each way, the states differ from the states of documents in separate calls, or the model raised
            an error.
    """

    def alone(texts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([model(input_ids=text[None]).last_hidden_state[0] for text in texts])

    def together(texts: list[torch.Tensor]) -> torch.Tensor:
        return last_hidden_state(model, Packed.joined(*map(Packed.single, texts)))

    with without_sets(model), torch.no_grad():
        return _keep_apart(model, _documents(model), alone, together)[0]


def see_only_earlier(model: torch.nn.Module) -> None:
    """Makes the attention of an encoder causal: each token sees itself and the earlier tokens of its document.

    In layers with local attention, only the earlier half of the window stays visible. The model's config does not
    change, so a saved model is loaded as an ordinary encoder.

    Args:
        model: an encoder after `keep_documents_apart`, on any device. Its attention is changed in place.

    Raises:
        ModelError: outputs of the model still depend on later tokens, for example by convolutions, or because its
            attention has no attribute `is_causal`.
    """
    if padded.document_rows(model):
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be made causal: it does not support packed documents",
            "choose an encoder like BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT, or objective.kind mlm",
        )
    set_causal(model, True)
    was_training = model.training
    model.eval()
    seen = depends_on_later(
        lambda text: predict_at(model, Packed.single(text), torch.arange(len(text), device=text.device)),
        _documents(model)[1],
    )
    model.train(was_training)
    if seen:
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be made causal: its outputs depend on later tokens",
            "choose an encoder like BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT, or objective.kind mlm",
        )


@torch.no_grad()
def depends_on_later(
    outputs: Callable[[torch.Tensor], torch.Tensor], document: torch.Tensor, tolerance: float = _TOLERANCE
) -> bool:
    """Returns whether the outputs at the tokens of a document change if its last token changes.

    Args:
        outputs: function that computes one row of numbers per token, [N, ...], from the ids of N tokens.
        document: the ids of the document's tokens, int64 [N].
        tolerance: smaller differences, as a share of the largest output, count as no change.
    """
    changed = document.clone()
    changed[-1] = document[-2]
    one, two = (outputs(tokens)[:-1].float() for tokens in (document, changed))
    return not _is_close(two, one, rtol=0, atol=tolerance)


def set_causal(model: torch.nn.Module, causal: bool) -> None:
    """Makes all attention layers causal or not. Sets the attribute that `adapt.model.packing.attention` reads."""
    for module in model.modules():
        if isinstance(getattr(module, "is_causal", None), bool):
            module.is_causal = causal  # type: ignore[assignment]


def try_architecture(
    config: PreTrainedConfig, kind: Any, only_earlier: bool = False, in_blocks: str | None = None
) -> Way | None:
    """Tests with a small random model how an architecture accepts documents. This takes one or two seconds.

    Args:
        config: config of the model; it is not changed.
        kind: the class of the model, or one of transformers' auto classes.
        only_earlier: whether to also check that its attention can be made causal.
        in_blocks: advice to the user in the error about a head that does not end in a linear layer. None accepts all
            heads.

    Returns:
        The way in which the architecture accepts documents. None if no small model can be built. In this case, problems
        are only found when the full model is loaded.

    Raises:
        ModelError: see `keep_documents_apart`, `see_only_earlier` and `check_linear_head`.
    """
    with quiet():
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                model = kind.from_config(_small(config), dtype=torch.float32).eval()
        except Exception:  # some architectures do not allow these sizes
            return None
        way = keep_documents_apart(model)
        if only_earlier:
            see_only_earlier(model)
        if in_blocks is not None:
            check_linear_head(model, in_blocks)
        return way


def _small(config: PreTrainedConfig) -> PreTrainedConfig:
    """Returns a config with two layers and few tokens, and with weights large enough for attention to matter."""
    small = copy.deepcopy(config)
    if layers := getattr(config, "num_hidden_layers", None):
        for name, value in config.to_dict().items():
            if isinstance(value, list) and len(value) == layers:  # an entry per layer, such as a window
                setattr(small, name, value[:2])
        with suppress(NotImplementedError):  # Funnel derives the number of layers from other settings
            small.num_hidden_layers = min(int(layers), 2)
    small.initializer_range = 0.2
    special = [
        value for name, value in config.to_dict().items() if name.endswith("token_id") and isinstance(value, int)
    ]
    small.vocab_size = min(int(config.vocab_size), max([*special, 0]) + 64)
    return small


def _keep_apart(
    model: PreTrainedModel, documents: list[torch.Tensor], alone: Outputs, together: Outputs
) -> tuple[Way, torch.Tensor]:
    """Makes a model accept documents in the fastest way that changes no output, in place.

    Returns:
        The way, and the outputs of `alone`.

    Raises:
        ModelError: no way works, or the model cannot compute a document alone.
    """
    if sees_both_sides(model.config):
        set_causal(model, False)
    try:
        expected = alone(documents)
    except Exception as raised:  # architectures that need other inputs may raise any type of error
        lengths = ", ".join(str(len(document)) for document in documents)
        raise _refused(model, raised, f"cannot compute texts of {lengths} tokens alone") from raised
    error: Exception | None = None
    try:
        with quiet(), attention.noting_calls() as callers:
            model.set_attn_implementation(attention.NAME)
            if _is_close(together(documents), expected) and callers:
                return "packed", expected
    except Exception as raised:  # the packed pass may also raise any type of error
        error = raised
    if additions_of(model.config) or _lacks_memory(error):  # additions only work with packed documents
        raise _refused(model, error) from error
    attention.use_attention_of_library(model)
    rows, error = padded.run_as_rows(model), None
    for rows.way in padded.possible_ways(model):
        try:
            if _is_close(together(documents), expected) and (
                rows.way == "by length" or _ignores_padding(rows, documents, together)
            ):
                return rows.way, expected
        except Exception as raised:  # the model may raise an error for padding, or for several documents
            error = raised
    raise _refused(model, error) from error


def _ignores_padding(rows: padded.DocumentRows, documents: list[torch.Tensor], together: Outputs) -> bool:
    """Whether outputs stay the same if another token is used at padding positions.

    The comparison with separate documents may miss a dependence on padding if weights are small.
    """
    outputs = []
    for rows.filling in documents[0][:2].tolist():
        outputs.append(together(documents))
    rows.filling = None
    return _is_close(outputs[1], outputs[0], rtol=0, atol=_NOISE)


def _is_close(
    outputs: torch.Tensor, expected: torch.Tensor, rtol: float = _TOLERANCE, atol: float = _TOLERANCE
) -> bool:
    """Compares losses [N] or other numbers [N, ...]. For other numbers, `atol` is a share of the largest number."""
    scale = 1.0 if expected.ndim == 1 else float(expected.abs().max())
    return torch.allclose(outputs, expected, rtol=rtol, atol=atol * scale)


def _ends_in_linear_layer(model: PreTrainedModel, documents: list[torch.Tensor]) -> bool:
    """Whether the model's logits are exactly the outputs of its last linear layer."""
    packed = Packed.joined(*map(Packed.single, documents))
    positions = torch.arange(packed.tokens, device=model.device)
    try:
        with torch.no_grad(), answering(model, lambda hidden, *_: torch.full_like(hidden[..., :1], _ANSWER)):
            answer = predict_at(model, packed, positions)
    except Exception:  # a later layer of the head cannot process this shape
        return False
    return torch.equal(answer, torch.full_like(answer, _ANSWER))


def _documents(model: Any) -> list[torch.Tensor]:
    """Returns test documents. Their ids are from the upper half of the vocabulary, without special tokens."""
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    # some families use the first positions for padding
    longest = min(_LONG, max(positions - 4, 1)) if isinstance(positions, int) and positions > 0 else _LONG
    lengths, middle = (*_LENGTHS, longest), int(config.vocab_size) // 2
    tokens = torch.arange(sum(lengths), device=model.device) % (int(config.vocab_size) - middle) + middle
    return list(tokens.split(lengths))


@torch.no_grad()
def _separate_losses(model: Any, documents: list[torch.Tensor]) -> torch.Tensor:
    """Returns the losses of all tokens [nats], with each document in its own call of the model.

    Raises:
        ModelError: losses are not finite, or a decoder sees the tokens that it has to predict.
    """

    def logits(document: torch.Tensor) -> torch.Tensor:
        return model(input_ids=document[None]).logits[0].float()  # type: ignore[no-any-return]

    losses = torch.cat([cross_entropy(logits(document), document, reduction="none") for document in documents])
    if not losses.isfinite().all():
        raise ModelError(
            f"{type(model).__name__} gives a loss of {losses.sum():.3g}: its weights are not finite",
            "copy or download the model again, or use another checkpoint",
        )
    if is_decoder(model.config) and not sees_both_sides(model.config) and depends_on_later(logits, documents[1]):
        raise ModelError(
            f"{type(model).__name__} sees the tokens that it has to predict, because its attention is not causal",
            "choose an encoder with a masked-LM head, or a decoder such as GPT-2 or Llama",
        )
    return losses


def _refused(model: PreTrainedModel, error: Exception | None = None, does: str = APART) -> AdaptError:
    """Returns the error for an architecture that cannot be trained.

    If `error` is an error of this project, it is returned unchanged. If it reports a lack of memory, it is raised.
    """
    if isinstance(error, AdaptError):
        return error
    if _lacks_memory(error):
        raise error
    cause = "" if error is None else f" ({type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]})"
    return ModelError(
        f"{type(model).__name__} {does}{cause}",
        "choose an architecture like BERT, RoBERTa, DeBERTa, ELECTRA, ModernBERT, GPT-2 or Llama",
    )


def _lacks_memory(error: Exception | None) -> TypeGuard[Exception]:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
