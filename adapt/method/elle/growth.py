"""Computes, checks and writes the larger dimensions that a model gets before a domain. This module loads no torch.

Width grows by whole attention heads, and the states and feed-forward layers grow in proportion, so that the size of a
head stays the same. Heads that share a key and a value are added together, as a group. A prompt is a set of vectors
before each document of a domain. `adapt.method.elle.grown_model` computes the larger model's weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from adapt.config import Config
from adapt.method import domain_parameters, measurement
from adapt.model.additions.table import refuse_additions, stored_additions
from adapt.model.architecture import PROMPTS, check_deeper, grow_layer_lists
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ALIASES, ModelSize
from adapt.support.errors import ConfigError


@dataclass(frozen=True)
class Growth:
    """Numbers of layers and attention heads that are added to a model."""

    layers: int = 0
    heads: int = 0

    @classmethod
    def before(cls, domain: int, layers: Sequence[int], heads: Sequence[int]) -> Self:
        """Returns the growth before the domain with this number (the first domain has number 1)."""
        return cls(*(each[domain - 1] if domain <= len(each) else 0 for each in (layers, heads)))

    def layer_sources(self, layers: int) -> list[tuple[int, bool]]:
        """Returns, for each layer of the larger model, the layer that it copies and whether it is an added layer.

        An added layer follows the layer that it copies. The copied layers are evenly spaced and include the last layer.
        """
        copied = {(number + 1) * layers // self.layers - 1 for number in range(self.layers)}
        return [(layer, new) for layer in range(layers) for new in ((False, True) if layer in copied else (False,))]

    def resize(self, config: Any) -> None:
        """Writes the larger dimensions into a transformers config, which maps common names to the architecture's."""
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        wide = {name: width * (heads + self.heads) / heads for name, width in _widths(config).items()}
        grow_layer_lists(config, [source for source, _ in self.layer_sources(layers)])
        for name, width in wide.items():
            setattr(config, name, round(width))
        config.num_hidden_layers, config.num_attention_heads = layers + self.layers, heads + self.heads

    def resized(self, size: ModelSize) -> ModelSize:
        """Returns the dimensions of the larger model, with approximate numbers of parameters."""
        wider, deeper = 1 + self.heads / size.heads, 1 + self.layers / size.layers
        is_projected = size.embedding_parameters != size.vocabulary * size.hidden  # ELECTRA's embeddings do not grow
        words, between = (1.0, wider) if is_projected else (wider, wider**2)
        transforms = size.head_parameters - size.embedding_parameters
        layer, transformed = round(size.layer_parameters * wider**2 * deeper), round(transforms * between)
        others = round((size.parameters - size.layer_parameters - transforms) * words)
        return replace(
            size,
            parameters=layer + transformed + others,
            layer_parameters=layer,
            head_parameters=transformed + round(size.embedding_parameters * words),
            embedding_parameters=round(size.embedding_parameters * words),
            layers=size.layers + self.layers,
            heads=size.heads + self.heads,
            hidden=round(size.hidden * wider),
            attention=round(size.attention * wider),
            inner=round(size.inner * wider),
        )


def check_growths(model: Path, growths: Sequence[Growth]) -> None:
    """Checks that a model can grow by these numbers of layers and heads.

    Args:
        model: folder of the model.
        growths: numbers of added layers and heads, one entry for each time that the model grows, in order.

    Raises:
        ConfigError: the model does not support this growth. The error names the field.
        ModelError: layers are added to a model in which a layer's computation depends on its index.
    """
    if any(growth.layers for growth in growths):
        check_deeper(model, "elle.layers")
    config = read_json(model / CONFIG)
    layers, heads, hidden = (
        next((config[key] for key in ALIASES[name] if config.get(key)), 0) for name in ("layers", "heads", "hidden")
    )
    shared = heads // (config.get("num_key_value_heads") or heads or 1)
    for number, growth in enumerate(growths, start=1):
        if growth.layers < 0 or growth.heads < 0:
            raise ConfigError(
                "elle.layers or elle.heads has a number below 0", "set 0 or more, because models only grow"
            )
        if growth.layers > layers:
            raise ConfigError(
                f"elle.layers adds {growth.layers} layers to {layers} layers before domain {number}, but each layer can"
                " be copied only once",
                f"add at most {layers} layers there",
            )
        if shared and growth.heads % shared:
            raise ConfigError(
                f"elle.heads adds {growth.heads} heads before domain {number}, but in this model {shared} heads share a"
                " key and a value",
                f"set a multiple of {shared}",
            )
        if heads and hidden * growth.heads % heads:
            raise ConfigError(
                f"elle.heads adds {growth.heads} heads to {heads}, but the hidden size {hidden} cannot grow in"
                " proportion to a whole number",
                f"add a number of heads that keeps the hidden size a whole number, such as {heads}",
            )
        hidden += hidden * growth.heads // heads if heads else 0
        layers, heads = layers + growth.layers, heads + growth.heads


def _widths(config: Any) -> dict[str, int]:
    """Returns the dimensions that grow with the heads, keyed by their names in the config."""
    names = ["num_key_value_heads", "hidden_size", *(name for name in ALIASES["inner"] if name in config.to_dict())]
    if getattr(config, "embedding_size", None) == config.hidden_size:  # ELECTRA with embeddings as wide as states
        names.append("embedding_size")
    return {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}


FIELD = "elle.prompt_length"


def check_prompts(config: Config, model: Path, length: int) -> None:
    """Checks that the job and the model support prompts of this length. A length of 0 means no prompts.

    Raises:
        ConfigError: the text is streamed, prompts leave no tokens for text, or the model's prompts have another length.
        ModelError: the model already has added parameters other than prompts.
    """
    found = {entry["kind"]: entry for entry in stored_additions(model)}
    if not length or found.keys() - {PROMPTS, domain_parameters.NAMED}:
        refuse_additions(model, "grown (method.kind elle)")
        return
    measurement.check_prepared(config, "the mean embedding of a domain", f"set {FIELD} to 0")
    if PROMPTS in found and found[PROMPTS]["length"] != length:
        had = found[PROMPTS]["length"]
        what = f"{FIELD} is {length}, but the prompts of {model} have {had} vectors"
        raise ConfigError(what, f"set {FIELD} to {had}")
    domain_parameters.check_room(config, model, FIELD, length)
