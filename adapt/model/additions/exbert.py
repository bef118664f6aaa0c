"""Adds exBERT's module (Tai et al. 2020, 2020.findings-emnlp.129): a smaller layer next to each layer, and a gate.

H' = s T_ofs(H) + (1 - s) T_ext(H), s = sigma(w . H)

H are the states before a layer, and H' are the states after the layer. T_ofs is the original layer, T_ext the smaller
layer, w the weight of the gate, and s a number for each token. T_ext has the architecture of T_ofs, but fewer heads and
inner neurons. So T_ext has the same norms and positions, and its attention also keeps packed documents isolated from
each other.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model import masked_updates, tokenizer
from adapt.model.additions.table import additions_of, with_addition
from adapt.model.layers import Layer, inputs, layers_of, outputs
from adapt.support.errors import ModelError

EXBERT = "exbert"
"""Name of exBERT in the table of added modules (`adapt.model.additions.table`)."""
EXTENSION, GATE = "extension", "gate"
"""Names of the submodules that exBERT adds to a layer: the smaller layer, and the gate."""


def add_exbert(model: Any, share: float, first_new: int, seed: int) -> None:
    """Attaches exBERT's module with random weights, in place, and adds its entry to the model's config.

    Args:
        model: an encoder with its head.
        share: number of heads and of inner neurons of the smaller layer, divided by the number in the original layer.
        first_new: id of the first new token.
        seed: seed of the random weights.

    Raises:
        ModelError: the model already has the module, its architecture is not supported, or it is a decoder.
    """
    if EXBERT in [entry["kind"] for entry in additions_of(model.config)]:
        raise ModelError(
            "the model already has exBERT's module, and can have only one",
            "leave vocabulary.module unset: training then continues with this module",
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
    """Adds a smaller layer and a gate to each layer of an encoder, in place, with weights that are not initialized.

    Args:
        model: a model of an architecture that `adapt.model.architecture` supports.
        heads: number of heads of each smaller layer. Each head is as wide as the model's heads.
        inner: number of inner neurons of each smaller layer's feed-forward block.
        first_new: id of the first token that was added with the module; see `train_exbert_alone`.

    Raises:
        ModelError: the model is a decoder, or its architecture is not supported.
    """
    if tokenizer.is_decoder(model.config):
        raise ModelError(
            f"exBERT's module works only with encoders, but {type(model).__name__} is a decoder", "choose an encoder"
        )
    for layer in layers_of(model):
        module: Any = layer.module
        device = module.get_submodule(layer.pattern.query).weight.device
        module.add_module(EXTENSION, _smaller(layer, model.config, heads, inner))
        module.add_module(GATE, nn.Linear(model.config.hidden_size, 1, bias=False, device=device))
        module.register_forward_hook(_blended, with_kwargs=True)


def _blended(layer: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
    """Computes H' from H, [1, N, hidden], by exBERT's equation, as a forward hook of a layer."""
    states = arguments[0] if arguments else named["hidden_states"]
    share: Tensor = layer.gate(states).sigmoid()
    # `forward` is called instead of the module, to skip the module's hooks. Hooks that collect the states of layers
    # would treat the extension as a layer, and gradient checkpointing would be applied to the extension twice.
    extended: Tensor = layer.extension.forward(*arguments, **named)
    return share * output + (1 - share) * extended


def _smaller(layer: Layer, config: Any, heads: int, inner: int) -> nn.Module:
    """Returns a layer of the same architecture with fewer heads and inner neurons."""
    pattern = layer.pattern
    width, neurons = inputs(layer.part(pattern.attention_out)), inputs(layer.part(pattern.outer))
    attended = heads * (width // config.num_attention_heads)
    # the copy shares the model's config object, so that copy and model always use the same attention function
    small = copy.deepcopy(layer.module, {id(config): config})
    for name in dict.fromkeys((pattern.query, pattern.key, pattern.value)):
        _resize(small, name, outputs_to=attended * outputs(layer.part(name)) // width)
    for name in pattern.inner:
        _resize(small, name, outputs_to=inner * outputs(layer.part(name)) // neurons)
    _resize(small, pattern.attention_out, inputs_to=attended)
    _resize(small, pattern.outer, inputs_to=inner)
    return small


def _resize(layer: nn.Module, name: str, inputs_to: int | None = None, outputs_to: int | None = None) -> None:
    """Replaces a linear submodule with a new linear layer that has a different number of inputs or outputs."""
    old: Any = layer.get_submodule(name)
    sizes = inputs_to or inputs(old), outputs_to or outputs(old)
    layer.set_submodule(name, nn.Linear(*sizes, bias=old.bias is not None, device=old.weight.device))


def draw_exbert(model: Any, seed: int) -> None:
    """Fills exBERT's module with random weights, using the architecture's own initialization."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(seed)
        for part in _parts(model):
            part.apply(lambda module: _draw(module, model.config))


def _draw(module: nn.Module, config: Any) -> None:
    """Initializes the weights of a module, after the weights of its submodules."""
    std = config.initializer_range or 0.02
    if isinstance(module, nn.Linear):
        module.weight.normal_(std=std)
        if module.bias is not None:
            module.bias.zero_()
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif hasattr(config, "initializer_cutoff_factor"):  # ModernBERT draws its blocks from a truncated normal
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
    """Returns the parameters of exBERT's module: all parameters of the smaller layers and of the gates."""
    return [parameter for part in _parts(model) for parameter in part.parameters()]


def train_exbert_alone(model: Any) -> None:
    """Freezes a model in place, except for exBERT's module and the embeddings of the tokens added with the module.

    This must come before an engine wraps the model.

    The optimizer gets whole tables of embeddings, because it cannot optimize single rows. The rows of old tokens do not
    change.

    Raises:
        ModelError: the model has no exBERT module.
    """
    entry = next((entry for entry in additions_of(model.config) if entry["kind"] == EXBERT), None)
    if entry is None:
        raise ModelError(
            f"freeze.all_but_module trains only exBERT's module, but {type(model).__name__} has no such module",
            "start from a model that `dontstop vocabulary extend` wrote with vocabulary.module exbert",
        )
    model.requires_grad_(False)
    for part in trained_parts(model):
        part.requires_grad_(True)
    head = model.get_output_embeddings()
    tables = (model.get_input_embeddings().weight, head.weight, head.bias)  # tied tables are the same object
    for table in {id(table): table for table in tables if table is not None}.values():
        masked_updates.hold_rows(table, entry["first_new"])
