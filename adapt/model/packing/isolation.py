"""Switches a model's attention, and checks that the model then keeps packed documents isolated from each other.

The attention of an encoder can also be made causal, for a phase of next-token prediction.
"""

import copy
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel

from adapt.model.additions.domain_modules import without_sets
from adapt.model.packing import attention
from adapt.model.packing.packed import Packed
from adapt.model.safeguards import quiet
from adapt.model.sparse_prediction import answering, losses_at, predict_at
from adapt.support.errors import AdaptError, ModelError

_LENGTHS = 3, 5
_ANSWER = 1000.0
_TOLERANCE = 1e-4


def keep_documents_apart(model: PreTrainedModel) -> None:
    """Switches a model to attention within documents, and checks that its losses stay the same.

    The possible faults depend on the architecture: positions as a bias between pairs of tokens, attention that does not
    use transformers' interface or needs more of its options, or logits that are changed after the last linear layer.
    Each fault changes the losses of two short documents when they are packed.

    Args:
        model: a model in evaluation mode, on any device. Its attention is changed in place.

    Raises:
        ModelError: the losses of packed documents differ from those of separate documents, or are not finite, or the
            model raised any error.
    """
    with without_sets(model):  # some sets change attention, so losses would differ from transformers' own attention
        _keep_apart(model)


_CHANGED = 7
"""Position of the token that is changed to test whether earlier tokens see it."""


def see_only_earlier(model: PreTrainedModel) -> None:
    """Makes the attention of an encoder causal: each token sees itself and the earlier tokens of its document.

    Layers with local attention keep their window, of which the later half is cut off. The switch is not part of the
    model's config, so saved weights are loaded as those of an ordinary encoder.

    Args:
        model: an encoder after `keep_documents_apart`, on any device. Its attention is changed in place.

    Raises:
        ModelError: outputs of the model still depend on later tokens, for example by convolutions, or because its
            attention has no attribute `is_causal`.
    """
    for module in model.modules():
        if getattr(module, "is_causal", None) is False:
            module.is_causal = True  # type: ignore[assignment]  # `attention` reads this attribute in every call
    was_training = model.training
    model.eval()
    middle = int(model.config.vocab_size) // 2
    document = torch.arange(middle, middle + _CHANGED + 1, device=model.device)
    other = document.clone()
    other[_CHANGED] = middle - 1
    earlier = torch.arange(_CHANGED, device=model.device)
    with torch.no_grad():
        one, two = (predict_at(model, Packed.single(tokens), earlier) for tokens in (document, other))
    model.train(was_training)
    if not torch.allclose(one, two, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be made causal: its outputs depend on later tokens",
            "choose an encoder like BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT, or objective.kind mlm",
        )


def try_architecture(config: PreTrainedConfig, kind: Any, only_earlier: bool = False) -> None:
    """Checks with a small random model whether an architecture supports packing. This takes one or two seconds.

    The check is skipped if no small model can be built. In this case, a fault is found when the model is loaded.

    Args:
        config: config of the model; it is not changed.
        kind: the class of the model, or one of transformers' auto classes.
        only_earlier: whether to also check that its attention can be made causal.

    Raises:
        ModelError: see `keep_documents_apart` and `see_only_earlier`.
    """
    with quiet():
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                model = kind.from_config(_small(config), dtype=torch.float32).eval()
        except Exception:  # the dimensions of some architectures depend on each other
            return
        keep_documents_apart(model)
        if only_earlier:
            see_only_earlier(model)


def _small(config: PreTrainedConfig) -> PreTrainedConfig:
    """Returns a config with two layers and few tokens, and with weights large enough for attention to matter."""
    small = copy.deepcopy(config)
    if layers := getattr(config, "num_hidden_layers", None):
        for name, value in config.to_dict().items():
            if isinstance(value, list) and len(value) == layers:  # an entry per layer, such as its type or its window
                setattr(small, name, value[:2])
        small.num_hidden_layers = min(int(layers), 2)
    small.initializer_range = 0.2
    special = [
        value for name, value in config.to_dict().items() if name.endswith("token_id") and isinstance(value, int)
    ]
    small.vocab_size = min(int(config.vocab_size), max([*special, 0]) + 64)
    return small


def _keep_apart(model: PreTrainedModel) -> None:
    try:
        expected = _separate(model)
    except Exception as error:  # architectures that need other inputs raise errors of any type
        raise _refused(model, error) from error
    if not expected.isfinite().all():
        raise ModelError(
            f"{type(model).__name__} gives a loss of {expected.sum():.3g}: its weights are not finite",
            "copy or download the model again, or use another checkpoint",
        )
    try:
        with quiet(), attention.noting_calls() as callers:
            model.set_attn_implementation(attention.NAME)
            losses = _together(model)
    except Exception as error:  # the packed pass can also raise errors of any type
        raise _refused(model, error) from error
    if not callers or not torch.allclose(losses, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise _refused(model)


def _documents(model: PreTrainedModel) -> list[torch.Tensor]:
    """Returns two documents with ids from the middle of the vocabulary, where there are no special tokens."""
    middle = int(model.config.vocab_size) // 2
    begin = 0
    documents = []
    for length in _LENGTHS:
        documents.append(torch.arange(middle + begin, middle + begin + length, device=model.device))
        begin += length
    return documents


@torch.no_grad()
def _separate(model: Any) -> torch.Tensor:
    """Returns the losses of all tokens, with each document in its own call of the model."""
    losses = [
        cross_entropy(model(input_ids=document[None]).logits[0].float(), document, reduction="none")
        for document in _documents(model)
    ]
    return torch.cat(losses)


def _together(model: PreTrainedModel) -> torch.Tensor:
    """Returns the losses of all tokens, with the documents packed into one sequence."""
    tokens = torch.cat(_documents(model))
    everywhere = torch.ones(1, len(tokens), dtype=torch.bool)
    starts = torch.zeros_like(everywhere)
    starts[0, [0, _LENGTHS[0]]] = True
    packed = Packed.of(tokens.cpu()[None], everywhere, starts).to(tokens.device)
    positions = torch.arange(len(tokens), device=tokens.device)
    with torch.no_grad(), answering(model, lambda hidden, *_: torch.full_like(hidden[..., :1], _ANSWER)):
        answer = predict_at(model, packed, positions)
    if not torch.equal(answer, torch.full_like(answer, _ANSWER)):
        raise ValueError("logits are changed after the last linear layer")
    return losses_at(model, packed, positions, tokens)


def _refused(model: PreTrainedModel, error: Exception | None = None) -> AdaptError:
    """Returns the error for an architecture that does not support packing.

    Errors of this project are returned unchanged, and a lack of memory is raised again.

    Args:
        model: the checked model.
        error: the error that the model raised, if any.
    """
    if isinstance(error, AdaptError):
        return error
    if error and (isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)):
        raise error
    cause = "" if error is None else f" ({type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]})"
    return ModelError(
        f"{type(model).__name__} cannot keep documents apart that share a sequence{cause}",
        "choose an architecture like BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2 or Llama",
    )
