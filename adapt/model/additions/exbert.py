"""exBERT's module (Tai et al. 2020, 2020.findings-emnlp.129): beside each layer a smaller one, and a gate between them.

H' = s T_ofs(H) + (1 - s) T_ext(H), s = sigma(w . H)

T_ofs is the layer that there is, T_ext the smaller one, w the gate's weight, and s a number for each token. T_ext is of
the same kind as its layer, with fewer heads and inner neurons. So it norms where that does, sees positions as that
does, and its attention goes through the same interface: it keeps packed documents apart, too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.additions.table import additions_of, with_addition
from adapt.model.layers import Layer, inputs, layers_of, outputs
from adapt.model.masked_updates import hold_rows
from adapt.model.tokenizer import is_decoder
from adapt.support.errors import ModelError

EXBERT = "exbert"
"""The kind of the addition."""
EXTENSION, GATE = "extension", "gate"
"""What a layer calls its smaller layer, and the gate."""


def add_exbert(model: Any, share: float, first_new: int, seed: int) -> None:
    """Attaches the module with random weights, in place, and enters it into the model's config.

    Args:
        model: an encoder with its head.
        share: of each layer's heads and inner neurons that its smaller layer has.
        first_new: id of the first new token.
        seed: of the weights.

    Raises:
        ModelError: it has a module, its layers are not known, or it is a decoder.
    """
    if EXBERT in [entry["kind"] for entry in additions_of(model.config)]:
        raise ModelError(
            "the model has exBERT's module already, and there can be one", "leave vocabulary.module unset: it goes on"
        )
    layer = layers_of(model)[0]
    options = {
        "heads": max(1, round(share * model.config.num_attention_heads)),
        "inner": max(1, round(share * inputs(layer.part(layer.pattern.outer)))),
        "first_new": first_new,
    }
    attach_exbert(model, **options)
    draw_exbert(model, seed)
    with_addition(model.config, EXBERT, **options)


def attach_exbert(model: Any, heads: int, inner: int, first_new: int) -> None:
    """Gives each layer of an encoder a smaller one and a gate, in place. Their weights mean nothing yet.

    Args:
        model: of a family that `adapt.model.architecture` knows.
        heads: of each smaller layer; they are as wide as those of the model.
        inner: neurons of its feed-forward block.
        first_new: id of the first token that the model got with the module; see `train_exbert_alone`.

    Raises:
        ModelError: the model is a decoder, or its layers are not known.
    """
    if is_decoder(model.config):
        raise ModelError(
            f"exBERT's module goes with encoders, and {type(model).__name__} is a decoder", "choose an encoder"
        )
    for layer in layers_of(model):
        place: Any = layer.module
        device = place.get_submodule(layer.pattern.query).weight.device
        place.add_module(EXTENSION, _smaller(layer, model.config, heads, inner))
        place.add_module(GATE, nn.Linear(model.config.hidden_size, 1, bias=False, device=device))
        place.register_forward_hook(_blended, with_kwargs=True)


def _blended(layer: Any, given: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
    """The equation above; H is [1, N, hidden]."""
    states = given[0] if given else named["hidden_states"]
    share: Tensor = layer.gate(states).sigmoid()
    # its forward and not the module itself, so that hooks that collect each layer's states do not take it for a layer
    # of the model, and checkpointing does not checkpoint it twice
    beside: Tensor = layer.extension.forward(*given, **named)
    return share * output + (1 - share) * beside


def _smaller(layer: Layer, config: Any, heads: int, inner: int) -> nn.Module:
    """A layer of the same kind with fewer heads and inner neurons."""
    pattern = layer.pattern
    width, neurons = inputs(layer.part(pattern.attention_out)), inputs(layer.part(pattern.outer))
    attended = heads * (width // config.num_attention_heads)
    small = copy.deepcopy(layer.module, {id(config): config})  # one config, so that both switch their attention
    for name in dict.fromkeys((pattern.query, pattern.key, pattern.value)):
        _resize(small, name, outputs_to=attended * outputs(layer.part(name)) // width)
    for name in pattern.inner:
        _resize(small, name, outputs_to=inner * outputs(layer.part(name)) // neurons)
    _resize(small, pattern.attention_out, inputs_to=attended)
    _resize(small, pattern.outer, inputs_to=inner)
    return small


def _resize(layer: nn.Module, name: str, inputs_to: int | None = None, outputs_to: int | None = None) -> None:
    """Puts a linear layer of another size in place of one. Fused ones keep the number of their parts."""
    old: Any = layer.get_submodule(name)
    sizes = inputs_to or inputs(old), outputs_to or outputs(old)
    layer.set_submodule(name, nn.Linear(*sizes, bias=old.bias is not None, device=old.weight.device))


def draw_exbert(model: Any, seed: int) -> None:
    """Fills the modules with random weights, drawn as the architecture's own are before any training.

    Args:
        model: with the module.
        seed: of the weights.
    """
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(seed)
        for part in _parts(model):
            part.apply(lambda module: _draw(module, model.config))


def _draw(module: nn.Module, config: Any) -> None:
    """Fills the weights of a module whose parts were filled before."""
    std = config.initializer_range or 0.02
    if isinstance(module, nn.Linear):
        module.weight.normal_(std=std)
        if module.bias is not None:
            module.bias.zero_()
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif hasattr(config, "initializer_cutoff_factor"):  # ModernBERT draws its blocks again, without large weights
        cutoff = 3 if config.initializer_cutoff_factor is None else config.initializer_cutoff_factor
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                width = std / math.sqrt(2 * config.num_hidden_layers) if name == "Wo" else std
                nn.init.trunc_normal_(child.weight, std=width, a=-cutoff * width, b=cutoff * width)


def _parts(model: Any) -> Iterator[nn.Module]:
    for layer in layers_of(model):
        yield layer.part(EXTENSION)
        yield layer.part(GATE)


def trained_parts(model: Any) -> list[nn.Parameter]:
    """The parameters of the module: smaller layers and gates."""
    return [parameter for part in _parts(model) for parameter in part.parameters()]


def train_exbert_alone(model: Any) -> None:
    """Freezes all of a model but the module and the rows of the tokens that came with it, in place.

    A row is a part of a parameter, so the whole table is handed to the optimizer, its other rows held.

    Args:
        model: with its head, before an engine wraps it.

    Raises:
        ModelError: it has no module.
    """
    entry = next((each for each in additions_of(model.config) if each["kind"] == EXBERT), None)
    if entry is None:
        raise ModelError(
            f"freeze.all_but_module trains exBERT's module alone, and {type(model).__name__} has none",
            "begin with a model that dontstop vocabulary extend has made with vocabulary.module exbert",
        )
    model.requires_grad_(False)
    for part in trained_parts(model):
        part.requires_grad_(True)
    head = model.get_output_embeddings()
    tables = (model.get_input_embeddings().weight, head.weight, head.bias)  # tied ones are one
    for table in {id(table): table for table in tables if table is not None}.values():
        hold_rows(table, entry["first_new"])
