"""Soft prompts: trained vectors before the first token of every document, like embeddings of words (arXiv 2104.08691).

The vectors are inserted between the word embeddings of different documents. So the model applies positions, norms and
dropout to them as to words, and tokens see the prompt as the beginning of their document. The positions of tokens
continue after the prompt. The base model returns the states of the tokens only, so callers need not know of prompts.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.architecture import PROMPTS, first_position
from adapt.model.packing.packed import Prolonged
from adapt.model.packing.padded import document_rows
from adapt.support.errors import ModelError


class Prompt(nn.Module):
    """One domain's vectors, initially 0.

    Args:
        length: number of vectors.
        width: width of word embeddings.
        device: device of the vectors.
    """

    def __init__(self, length: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.length, self.width = length, width
        self.vectors = nn.Parameter(torch.zeros(length, width, device=device))

    def fresh(self) -> Prompt:
        """Returns a new, untrained prompt of the same size."""
        return Prompt(self.length, self.width, self.vectors.device)

    def forward(self, words: Tensor) -> Tensor:
        """Puts the prompt's vectors before the embeddings of words [N, width]."""
        return torch.cat((self.vectors.to(words.dtype), words))


class _Before:
    """Hooks of a base model that insert a prompt before each document and remove the prompt's states afterwards."""

    def __init__(self, sets: DomainSets) -> None:
        self.sets = sets
        self.tokens: Tensor | None = None
        """Indices of the tokens in the sequence with prompts, while the model computes; None if no prompt is in use."""

    def enter(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        prompt: Any = self.sets.used
        self.tokens = None
        if prompt is None:
            return arguments, options
        given = dict(zip(inspect.signature(module.forward).parameters, arguments, strict=False)) | options
        if given.get("past_key_values") is not None:
            raise ModelError("a model with prompts cannot go on from states of an earlier call", "set use_cache=False")
        ids, words = given.pop("input_ids", None), given.pop("inputs_embeds", None)
        given["inputs_embeds"] = module.get_input_embeddings()(ids) if words is None else words
        prolong = _prolong_rows if given.get("documents") is None else _prolong_documents
        self.tokens = prolong(given, prompt, first_position(module.config))
        return (), given

    def leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        tokens, self.tokens = self.tokens, None
        if tokens is None:
            return output
        if isinstance(output, tuple):
            return tuple(_cut(part, tokens) for part in output)
        for name in ("last_hidden_state", "hidden_states"):
            if output.get(name) is not None:
                output[name] = _cut(output[name], tokens)
        return output


def _prolong_documents(given: dict[str, Any], prompt: Prompt, first: int) -> Tensor:
    """Puts the prompt before each document of a packed sequence. Returns the new indices of the tokens."""
    words, documents = given["inputs_embeds"], given["documents"]
    layout: Prolonged = documents.prolonged(prompt.length)
    given["documents"] = layout.documents
    given["inputs_embeds"] = prompt(words[0]).index_select(0, layout.order)[None]
    beginning = torch.arange(first, first + prompt.length, device=words.device)
    positions = torch.cat((beginning, given["position_ids"][0] + prompt.length))
    given["position_ids"] = positions.index_select(0, layout.order)[None]
    if given.get("token_type_ids") is not None:
        segments = torch.cat((torch.zeros_like(beginning), given["token_type_ids"][0]))
        given["token_type_ids"] = segments.index_select(0, layout.order)[None]
    return layout.tokens


def _prolong_rows(given: dict[str, Any], prompt: Prompt, first: int) -> Tensor:
    """Puts the prompt before each row of a padded batch. Returns the new indices of the tokens."""
    words, length = given["inputs_embeds"], prompt.length
    given["inputs_embeds"] = torch.stack([prompt(row) for row in words])

    def before(name: str, beginning: Tensor, shift: int = 0) -> None:
        if (values := given.get(name)) is not None:
            if values.ndim != 2:
                raise ModelError(f"a model with prompts takes no {name} of {values.ndim} dimensions", "give rows of it")
            start = beginning.to(values).expand(len(values), -1)
            given[name] = torch.cat((start, values + shift), 1)

    numbers = torch.arange(length, device=words.device)
    before("attention_mask", torch.ones_like(numbers))
    before("token_type_ids", torch.zeros_like(numbers))
    before("position_ids", numbers + first, length)
    return torch.arange(length, length + words.shape[1], device=words.device)


def _cut(states: Any, tokens: Tensor) -> Any:
    """Selects the tokens' states from states [B, L, H], or from a tuple of states. Other values stay unchanged."""
    if isinstance(states, tuple):
        return tuple(_cut(part, tokens) for part in states)
    return states.index_select(1, tokens) if isinstance(states, Tensor) and states.ndim == 3 else states


def attach_prompts(model: Any, sets: int, length: int) -> None:
    """Adds prompts to a model, in place.

    Args:
        model: a model of transformers, with or without its head.
        sets: number of prompts: one for each domain, or one for all.
        length: length of each prompt [vectors].

    Raises:
        ModelError: the model takes no packed documents.
    """
    base = model.base_model
    if document_rows(model):
        raise ModelError(
            f"prompts need packed documents, which {type(model).__name__} does not take", "choose another method.kind"
        )
    table = base.get_input_embeddings().weight
    prompts = DomainSets(Prompt(length, table.shape[1], table.device) for _ in range(sets))
    before = _Before(prompts)
    base.register_forward_pre_hook(before.enter, with_kwargs=True)
    base.register_forward_hook(before.leave, prepend=True)  # runs first, so that other hooks see only the tokens
    base.add_module(PROMPTS, prompts)


@torch.no_grad()
def begin_prompt(model: Any, number: int, words: Tensor) -> None:
    """Initializes a prompt with the embeddings of words.

    Args:
        model: a model with prompts.
        number: number of the prompt, from 0.
        words: token ids, int64 [length].
    """
    base = model.base_model
    table = base.get_input_embeddings().weight
    getattr(base, PROMPTS)[number].vectors.copy_(table[words.to(table.device)])
