"""Make a model ready for packed sequences, or refuse it by name."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from adapt.errors import ModelError
from adapt.model.additions.domains import without_sets
from adapt.model.outputs.head import answering, losses_at, predict_at
from adapt.model.packing import attention
from adapt.model.packing.packed import Packed

_LENGTHS = 3, 5
_ANSWER = 1000.0
_TOLERANCE = 1e-4


def keep_documents_apart(model: PreTrainedModel) -> None:
    """Switches a model to attention inside documents, and tries whether it then computes what it did.

    What could go wrong differs between architectures: positions as a bias between pairs of tokens, attention that does
    not go through transformers' interface or asks it for more, logits changed after the last linear layer. One try on
    two short documents, together and alone, shows it.

    Args:
        model: in evaluation mode, on any device; its attention is changed.

    Raises:
        ModelError: the losses of packed documents are not those of the documents alone, or are not finite.
    """
    with without_sets(model):  # some change attention, which transformers' own does not know
        _keep_apart(model)


def _keep_apart(model: PreTrainedModel) -> None:
    expected = _alone(model)
    if not expected.isfinite().all():
        raise ModelError(
            f"{type(model).__name__} gives a loss of {expected.sum():.3g}: its weights are not finite",
            "copy or download the model again, or use another checkpoint",
        )
    if not model._can_set_attn_implementation():
        raise _refused(model)
    try:
        model.set_attn_implementation(attention.NAME)
        losses = _together(model)
    except (TypeError, ValueError, NotImplementedError) as error:  # what it asks for is not there
        raise _refused(model) from error
    if not torch.allclose(losses, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise _refused(model)


def _documents(model: PreTrainedModel) -> list[torch.Tensor]:
    """Ids from the middle of the vocabulary, where no special ones are."""
    middle = int(model.config.vocab_size) // 2
    begin = 0
    documents = []
    for length in _LENGTHS:
        documents.append(torch.arange(middle + begin, middle + begin + length, device=model.device))
        begin += length
    return documents


@torch.no_grad()
def _alone(model: Any) -> torch.Tensor:
    losses = [
        cross_entropy(model(input_ids=document[None]).logits[0].float(), document, reduction="none")
        for document in _documents(model)
    ]
    return torch.cat(losses)


def _together(model: PreTrainedModel) -> torch.Tensor:
    tokens = torch.cat(_documents(model))
    everywhere = torch.ones(1, len(tokens), dtype=torch.bool)
    starts = torch.zeros_like(everywhere)
    starts[0, [0, _LENGTHS[0]]] = True
    packed = Packed.of(tokens.cpu()[None], everywhere, starts).to(tokens.device)
    places = torch.arange(len(tokens), device=tokens.device)
    with torch.no_grad(), answering(model, lambda hidden, *_: torch.full_like(hidden[..., :1], _ANSWER)):
        answer = predict_at(model, packed, places)
    if not torch.equal(answer, torch.full_like(answer, _ANSWER)):
        raise ValueError("logits are changed after the last linear layer")
    return losses_at(model, packed, places, tokens)


def _refused(model: PreTrainedModel) -> ModelError:
    return ModelError(
        f"{type(model).__name__} cannot keep documents apart that share a sequence",
        "choose an architecture like BERT, RoBERTa, DistilBERT, ELECTRA, ModernBERT, GPT-2 or Llama",
    )
