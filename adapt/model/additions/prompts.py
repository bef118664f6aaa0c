"""Soft prompts and prefixes: trained vectors before every document, as embeddings or as keys and values of each layer.

Soft prompts (arXiv 2104.08691) are inserted before the word embeddings of each document. So the model applies
positions, norms and dropout to prompts and words alike, and tokens see the prompt as the start of their document. The
positions of tokens continue after the prompt. The base model returns only the states of the tokens, so callers need
not handle prompts.

Prefixes (arXiv 2101.00190) are keys and values to which all tokens of a document attend, in addition to the document's
own keys. Each layer has its own prefix. It is inserted where attention is computed (`adapt.model.packing.attention`),
after the model has transformed the keys, for example by rotary positions. So prefixes take no positions, and the
positions of tokens do not change. In a layer with sliding-window attention, the prefix is treated like tokens directly
before the document, so tokens far from the document's start do not attend to the prefix.
"""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.architecture import PROMPTS, first_position
from adapt.model.layers import Layer, inputs, layers_of, outputs
from adapt.model.packing import attention, padded
from adapt.model.packing.packed import Packed, Prolonged
from adapt.model.states import last_hidden_state
from adapt.support.errors import ModelError


class Prompt(nn.Module):
    """One domain's vectors, [length, width of word embeddings], initially 0."""

    def __init__(self, length: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.length, self.width = length, width
        self.vectors = nn.Parameter(torch.zeros(length, width, device=device))

    def fresh(self) -> "Prompt":
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
        """During a forward pass, the index of each token in the sequence with prompts. None if no prompt is in use."""

    def enter(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        prompt: Any = self.sets.used
        self.tokens = None
        if prompt is None:
            return arguments, options
        given = dict(zip(inspect.signature(module.forward).parameters, arguments, strict=False)) | options
        if given.get("past_key_values") is not None:
            raise ModelError(
                "a model with trained prompts cannot continue from the past_key_values of an earlier call",
                "set use_cache=False",
            )
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
    """Puts the prompt before each document of a packed sequence. Returns the tokens' indices in the longer sequence."""
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
    """Puts the prompt before each row of a padded batch. Returns the tokens' indices in the longer rows."""
    words, length = given["inputs_embeds"], prompt.length
    given["inputs_embeds"] = torch.stack([prompt(row) for row in words])

    def before(name: str, beginning: Tensor, shift: int = 0) -> None:
        if (values := given.get(name)) is not None:
            if values.ndim != 2:
                raise ModelError(
                    f"a model with trained prompts does not support {name} with {values.ndim} dimensions",
                    f"pass {name} with 2 dimensions: sequences x tokens",
                )
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
        model: a Hugging Face `transformers` model, with or without its head.
        sets: number of prompts: one for each domain, or one for all domains.
        length: length of each prompt [vectors].

    Raises:
        ModelError: the model does not support packed documents.
    """
    base = model.base_model
    if padded.document_rows(model):
        raise ModelError(
            f"prompts need several documents packed into one sequence, which {type(model).__name__} does not support",
            "choose another method.kind",
        )
    table = base.get_input_embeddings().weight
    prompts = DomainSets(Prompt(length, table.shape[1], table.device) for _ in range(sets))
    before = _Before(prompts)
    base.register_forward_pre_hook(before.enter, with_kwargs=True)
    base.register_forward_hook(before.leave, prepend=True)  # runs first, so that other hooks see no prompts
    base.add_module(PROMPTS, prompts)


@torch.no_grad()
def begin_prompt(model: Any, number: int, words: Tensor) -> None:
    """Initializes the prompt with this number, from 0, with the embeddings of words (token ids, int64 [length])."""
    base = model.base_model
    table = base.get_input_embeddings().weight
    getattr(base, PROMPTS)[number].vectors.copy_(table[words.to(table.device)])


_PIECE = 64
"""The words that initialize a new prefix are split into documents of at most this length [tokens]."""


class Prefix(nn.Module):
    """One domain's keys and values in one layer, [length, key heads, width of a head] each, initially 0."""

    def __init__(self, length: int, heads: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.length = length
        self.keys, self.values = (nn.Parameter(torch.zeros(length, heads, width, device=device)) for _ in range(2))

    def fresh(self) -> "Prefix":
        """Returns a new, untrained prefix of the same size."""
        length, heads, width = self.keys.shape
        return Prefix(length, heads, width, self.keys.device)

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Puts the prefix's keys and values before the keys and values of a text, [N, heads, D] each."""
        return torch.cat((self.keys.to(keys.dtype), keys)), torch.cat((self.values.to(values.dtype), values))


class _Watch(nn.Module):
    """A placeholder for a prefix. It adds no keys and values, but stores the keys and values of the text."""

    length = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = keys, values
        return keys, values


def attach_prefixes(model: Any, sets: int, length: int) -> None:
    """Adds prefixes to the attention of each layer, in place.

    Args:
        model: a model of an architecture that `adapt.model.architecture` supports.
        sets: number of prefixes per layer: one for each domain, or one for all domains.
        length: length of each prefix [keys].

    Raises:
        ModelError: the architecture is not supported.
    """
    for layer in layers_of(model):
        out, heads = layer.part(layer.pattern.attention_out), int(model.config.num_attention_heads)
        width, device = inputs(out) // heads, out.weight.device
        keys = heads if layer.pattern.fused else outputs(layer.part(layer.pattern.key)) // width
        prefixes = DomainSets(Prefix(length, keys, width, device) for _ in range(sets))
        _attention_of(layer).add_module(attention.PREFIXES, prefixes)


@torch.no_grad()
def begin_prefixes(model: Any, number: int, words: Tensor) -> None:
    """Initializes a domain's prefixes with the keys and values that the model computes for words.

    The words get positions that texts rarely use. Otherwise the model would treat a key at a position of the text as a
    word of the text. Rotary positions of the words are negative, that is, before the text. If the model has a table of
    positions, the words get positions from the middle of the table.

    Args:
        model: a model with prefixes, in evaluation mode.
        number: number of the domain whose prefixes are initialized, from 0; 0 for shared prefixes.
        words: token ids, int64 [length].
    """
    by_layer: list[Any] = [getattr(_attention_of(layer), attention.PREFIXES) for layer in layers_of(model)]
    chosen, watches = by_layer[0].chosen, [_Watch() for _ in by_layer]
    for prefixes, watch in zip(by_layer, watches, strict=True):
        prefixes.append(watch)
        prefixes.chosen = len(prefixes) - 1
    last_hidden_state(model, _aside(model.config, words.to(next(model.parameters()).device)))
    for prefixes, watch in zip(by_layer, watches, strict=True):
        del prefixes[-1]
        prefixes.chosen = chosen
        assert watch.seen
        prefixes[number].keys.copy_(watch.seen[0])
        prefixes[number].values.copy_(watch.seen[1])


def _aside(config: Any, words: Tensor) -> Packed:
    """Packs words into documents, at positions that texts rarely use."""
    is_rotary = getattr(config, "rope_parameters", None) is not None
    middle = (config.max_position_embeddings - first_position(config)) // 2
    piece = _PIECE if is_rotary else min(_PIECE, middle)
    packed = Packed.joined(*map(Packed.single, words.split(piece)))
    return replace(packed, position_ids=packed.position_ids + (-piece if is_rotary else middle))


def _attention_of(layer: Layer) -> nn.Module:
    """Returns the module of a layer that calls the attention function."""
    part: nn.Module = layer.part(layer.pattern.query.rpartition(".")[0])
    return part
