"""Makes a model larger without changing its outputs (as in Net2Net, arXiv 1511.05641, and ELLE, arXiv 2203.06311).

**Width.** Each new unit is a copy of an existing unit. The weights that produce the unit are copied, and the weights
that read the unit are divided by the number of copies. The outputs stay the same if all units have the same number of
copies. Otherwise normalization layers compute another mean and variance of the states. An LM head with its own matrix
is divided like any layer that reads states. A head that shares its matrix with the embeddings cannot be divided, since
the embeddings produce states. The norm before the head is divided instead.

**Depth.** A new layer is a copy of the layer below it. `silent` layers have output projections of 0. In models with
norms before the blocks, a silent layer is the identity. In models with norms after the residual sums (BERT and
relatives), a silent layer becomes the identity when the new layer's last norm takes over the scale and shift of the
norm below. Two norms in a row equal one norm, up to the norm's epsilon.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adapt.method.base import Setting
from adapt.method.domain_sets import learn_prototype, sample_of, take_set
from adapt.method.elle.growth import Growth
from adapt.model.additions.domain_modules import attach_domains, domains_of, own_parameters, sets_of
from adapt.model.additions.prompts import attach_prompts, begin_prompt
from adapt.model.architecture import PROMPTS
from adapt.model.layers import Layer, inputs, is_transposed, layers_of, outputs

BEFORE_HEAD = {
    "bert": "cls.predictions.transform.LayerNorm",
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "lm_head.layer_norm"),
    "electra": "generator_predictions.LayerNorm",
    "distilbert": "vocab_layer_norm",
    "modernbert": "head.norm",
    "gpt2": "transformer.ln_f",
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), "model.norm"),
}
"""Name of the norm whose output the head's last linear layer reads, keyed by model type."""
NORMS_OF_SUMS = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "electra"), ("attention.output.LayerNorm", "output.LayerNorm")
    ),
    "distilbert": ("sa_layer_norm", "output_layer_norm"),
}
"""Names of the two norms of a layer in models with norms after the residual sums, keyed by model type.

Other models have norms before the blocks.
"""


class Axis:
    """Maps each unit along one axis of a larger weight to the unit of the smaller weight that it copies.

    Args:
        sources: for each unit of the larger model, the index of the unit that it copies, int64 [after].
    """

    def __init__(self, sources: Tensor) -> None:
        self.sources = sources
        self.copies = torch.bincount(sources)[sources].float()
        """For each unit of the larger model, the number of units that copy the same unit of the smaller model."""
        first = torch.full((int(sources.max()) + 1,), len(sources)).scatter_reduce(
            0, sources, torch.arange(len(sources)), "amin"
        )
        self.is_new = first[sources] != torch.arange(len(sources))

    @classmethod
    def grown(cls, before: int, after: int, draw: torch.Generator) -> "Axis":
        """Returns an axis of `after` units that copies all `before` units in rounds, each in random order.

        The number of copies differs by at most 1 between units.
        """
        rounds = [torch.randperm(before, generator=draw) for _ in range(after // before)]
        return cls(torch.cat([torch.arange(before), *rounds])[:after])

    def blocks(self, size: int, stacked: int = 1) -> "Axis":
        """Returns an axis with `size` adjacent positions per unit, repeated for `stacked` concatenated matrices."""
        before = int(self.sources.max()) + 1
        within = (self.sources[:, None] * size + torch.arange(size)).flatten()
        return Axis(torch.cat([within + number * before * size for number in range(stacked)]))


@dataclass(frozen=True)
class _Axes:
    """The axis of the outputs and the axis of the inputs of each linear part of a layer, keyed by the part's name."""

    made: Mapping[str, Axis]
    read: Mapping[str, Axis]
    states: Axis

    @classmethod
    def between(cls, model: Any, larger: Any, draw: torch.Generator) -> "_Axes":
        """Draws which units of a model the larger model copies. The choice is the same in all layers."""
        before, after = layers_of(model)[0], layers_of(larger)[0]
        pattern = before.pattern
        out, outer, heads = before.part(pattern.attention_out), before.part(pattern.outer), _heads(model)
        more = _heads(larger)
        states = Axis.grown(outputs(outer), outputs(after.part(pattern.outer)), draw)
        inner = Axis.grown(inputs(outer), inputs(after.part(pattern.outer)), draw)
        groups, width = Axis.grown(heads[1], more[1], draw), inputs(out) // heads[0]
        queries, keys = groups.blocks(heads[0] // heads[1] * width), groups.blocks(width)
        attention = {pattern.query: queries, pattern.key: keys, pattern.value: keys}
        if pattern.fused:
            attention = {pattern.query: groups.blocks(width, stacked=3)}
        stacked = {name: outputs(before.part(name)) // inputs(outer) for name in pattern.inner}
        feed_forward = {name: inner.blocks(1, count) for name, count in stacked.items()}
        made = {**attention, pattern.attention_out: states, **feed_forward, pattern.outer: states}
        read = {**dict.fromkeys(made, states), pattern.attention_out: queries, pattern.outer: inner}
        return cls(made, read, states)


def _heads(model: Any) -> tuple[int, int]:
    """Returns the number of attention heads, and the number of key-value heads."""
    heads = int(model.config.num_attention_heads)
    return heads, int(getattr(model.config, "num_key_value_heads", None) or heads)


def grown(model: Any, growth: Growth, noise: float = 0.0, seed: int = 0) -> Any:
    """Returns a larger model of the same class.

    Args:
        model: the whole model, on the CPU. `adapt.model.architecture` must support its layers.
        growth: numbers of layers and heads to add.
        noise: standard deviation of the noise that is added to the weights that produce copied units, in the linear
            parts of layers.
        seed: seed of all draws.

    Returns:
        The larger model, in evaluation mode. Its outputs are those of the smaller model if there is no noise, and the
        width of the states is a whole multiple of the old width.
    """
    config, draw = copy.deepcopy(model.config), torch.Generator().manual_seed(seed % 2**63)
    growth.resize(config)
    config.dtype = torch.float32
    with torch.random.fork_rng([]):
        larger: Any = type(model)(config).eval()
    old, new, weights = layers_of(model), layers_of(larger), model.state_dict()
    axes, sources = _Axes.between(model, larger, draw), growth.layer_sources(len(old))
    with torch.no_grad():
        for layer, (source, _) in zip(new, sources, strict=True):
            _fill_layer(layer, old[source].name, weights, axes, noise, draw)
        within = {id(each) for layer in new for each in layer.module.parameters()}
        for name, parameter in larger.named_parameters():
            if id(parameter) not in within:
                _fill(parameter, weights[name], _reads(larger.get_submodule(name.rpartition(".")[0])), axes.states)
        _divide_before_tied_head(larger, axes.states)
        grow_prompts(model, larger, axes.states.sources)
        for below, layer, (_, is_new) in zip(new, new[1:], sources[1:], strict=False):
            if is_new:
                _silence(layer, below, NORMS_OF_SUMS.get(config.model_type))
    return larger


def _fill_layer(
    layer: Layer, source: str, weights: Mapping[str, Tensor], axes: _Axes, noise: float, draw: torch.Generator
) -> None:
    """Fills a layer of the larger model with the weights of layer `source` of the smaller model."""
    for name, parameter in layer.module.named_parameters():
        if (weight := weights.get(f"{source}.{name}")) is None:
            continue  # ModernBERT's layer 0 has no attention norm, but its copy has a norm with scale 1
        part = name.rpartition(".")[0]
        if part not in axes.made:
            _fill(parameter, weight, None, axes.states)
            continue
        made, reads = axes.made[part], _reads(layer.part(part))
        _fill(parameter, weight, reads, axes.read[part], made)
        if noise and made.is_new.any() and parameter.ndim == 2:
            new = made.is_new[:, None] if reads == 1 else made.is_new[None, :]
            parameter.add_(noise * torch.randn(parameter.shape, generator=draw) * new)


def _reads(module: nn.Module) -> int | None:
    """Returns the dimension of a module's weight that belongs to its inputs. None for embeddings and norms."""
    if not (is_transposed(module) or isinstance(module, nn.Linear)):
        return None
    return 0 if is_transposed(module) else 1


def _fill(parameter: Tensor, weight: Tensor, reads: int | None, read: Axis, made: Axis | None = None) -> None:
    """Copies units along the axes that have grown, and divides weights that read copies by the number of copies.

    Args:
        parameter: the parameter of the larger model, which is filled.
        weight: the weight of the smaller model.
        reads: the dimension of the weight that belongs to its inputs. None if it has no inputs.
        read: the axis of the inputs.
        made: the axis of the outputs. None if it is the same as `read`.
    """
    for axis in range(weight.ndim):
        if weight.shape[axis] == parameter.shape[axis]:
            continue
        is_read = weight.ndim == 2 and axis == reads
        grows = read if is_read or made is None else made
        weight = weight.index_select(axis, grows.sources)
        if is_read:
            weight = weight / (grows.copies if axis == 1 else grows.copies[:, None])
    parameter.copy_(weight)


def _divide_before_tied_head(larger: Any, states: Axis) -> None:
    """Divides the norm before the head by each unit's number of copies, if the head is tied to the embeddings."""
    if larger.get_output_embeddings().weight is larger.get_input_embeddings().weight:
        for parameter in larger.get_submodule(BEFORE_HEAD[larger.config.model_type]).parameters():
            if len(parameter) == len(states.copies):
                parameter /= states.copies


def _silence(layer: Layer, below: Layer, norms: tuple[str, str] | None) -> None:
    """Changes a new layer so that it leaves the states unchanged. The layer is a copy of the layer below it."""
    for part in (layer.pattern.attention_out, layer.pattern.outer):
        for parameter in layer.part(part).parameters(recurse=False):
            parameter.zero_()
    if norms:
        first, last = norms
        layer.part(last).load_state_dict(below.part(last).state_dict())
        for norm in (layer.part(first), below.part(last)):
            nn.init.ones_(norm.weight)
            nn.init.zeros_(norm.bias)


def take_prompt(
    model: Any, setting: Setting, length: int, past: Mapping[str, Path]
) -> tuple[list[str], dict[str, int]]:
    """Adds a prompt for the domain to be learnt, and selects it. The model and this prompt are trained together.

    Args:
        model: a model in evaluation mode, with the prompts of earlier domains.
        setting: the training's setting.
        length: length of a prompt [vectors].
        past: folders of the earlier domains' text in the order learnt, keyed by the names of the method's stages.

    Returns:
        The names of all domains that have a prompt, and the prompt number of each text in `past`.
    """
    known = domains_of(model)
    before = list(known.names) if known else []
    # pairs texts and prompts from the end, because an earlier sequence of domains may have added the first prompts
    last = list(zip(reversed([*past]), reversed(before), strict=False))
    for text, name in last:
        learn_prototype(model, name, sample_of([past[text]], setting.seed))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    names = take_set(
        model,
        setting,
        True,
        PROMPTS,
        {"length": length},
        lambda number, words: begin_prompt(model, number, words(length)),
    )
    for parameter in trained:
        parameter.requires_grad_(True)
    for number, name in enumerate(names):
        if name != setting.domain:
            for parameter in own_parameters(model, number):
                parameter.requires_grad_(False)
    return names, {text: names.index(name) for text, name in last}


def grow_prompts(model: Any, larger: Any, sources: Tensor) -> None:
    """Copies the prompts and prototypes of a smaller model to a larger one.

    Args:
        model: the smaller model.
        larger: the larger model, without prompts.
        sources: for each unit of the larger model's states, the index of the unit that it copies, int64 [after].
    """
    known, sets = domains_of(model), sets_of(model)
    if known is None or not sets:
        return
    attach_domains(larger, known.names)
    prompts: Any = sets[0]
    attach_prompts(larger, len(prompts), prompts[0].length)
    for old, new in zip((known, *prompts), (domains_of(larger), *sets_of(larger)[0]), strict=True):
        vectors: Any = old.vectors
        grown: Any = new
        grown.vectors.copy_(vectors if vectors.shape == grown.vectors.shape else vectors.index_select(1, sources))
