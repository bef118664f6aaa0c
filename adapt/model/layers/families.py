"""Where the parts of a transformer's layer are, by architecture. A new architecture needs a `Pattern` here.

Imports neither torch nor transformers, so that a job can say at once what it cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.errors import ModelError
from adapt.model.locate import CONFIG, read_json


@dataclass(frozen=True)
class Pattern:
    """The parts of a layer, by the names of its modules."""

    layers: str
    """The list of layers, below base_model."""
    query: str
    key: str
    value: str
    attention_out: str
    """The projection behind the heads. Its input holds the outputs of all heads, one after another."""
    inner: tuple[str, ...]
    """Modules that compute the inner neurons of the feed-forward block; there are several if the neurons are gated."""
    outer: str
    """The module that computes the output neurons of the feed-forward block."""
    fused: bool = False
    """Whether query, key and value are one module, with their rows in this order."""


_BERT = Pattern(
    layers="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_out="attention.output.dense",
    inner=("intermediate.dense",),
    outer="output.dense",
)
_LLAMA = Pattern(
    layers="layers",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_out="self_attn.o_proj",
    inner=("mlp.gate_proj", "mlp.up_proj"),
    outer="mlp.down_proj",
)
PATTERNS: dict[str, Pattern] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "distilbert": Pattern(
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_out="attention.out_lin",
        inner=("ffn.lin1",),
        outer="ffn.lin2",
    ),
    "modernbert": Pattern(
        layers="layers",
        query="attn.Wqkv",
        key="attn.Wqkv",
        value="attn.Wqkv",
        attention_out="attn.Wo",
        inner=("mlp.Wi",),
        outer="mlp.Wo",
        fused=True,
    ),
    "gpt2": Pattern(
        layers="h",
        query="attn.c_attn",
        key="attn.c_attn",
        value="attn.c_attn",
        attention_out="attn.c_proj",
        inner=("mlp.c_fc",),
        outer="mlp.c_proj",
        fused=True,
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
}
"""How each family arranges its layers, by `model_type` of its configuration."""

HEADS = {
    "bert": "cls.predictions.",
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "lm_head."),
    "electra": "generator_",
    "distilbert": "vocab_transform.",
    "modernbert": "head.",
}
"""How the names of the language-model head's weights begin, by `model_type` of encoders."""


def pattern_of(kind: str) -> Pattern:
    """The parts of an architecture's layers.

    Args:
        kind: its `model_type`.

    Raises:
        ModelError: it is not known.
    """
    if kind not in PATTERNS:
        raise ModelError(
            f"the units of {kind} models are not known (known: {', '.join(sorted(PATTERNS))})",
            f"set method.kind to plain, or add a Pattern for {kind!r} to adapt/model/layers/families.py, and a test",
        )
    return PATTERNS[kind]


def check_units(folder: Path) -> None:
    """Refuses a model whose units are not known, by its config.json.

    Raises:
        ModelError: names those that are.
    """
    pattern_of(str(read_json(folder / CONFIG).get("model_type")))


def check_deeper(folder: Path, field: str) -> None:
    """Refuses a model whose layers compute something else at another depth.

    Args:
        folder: of the model.
        field: of the configuration, which asks for more layers.

    Raises:
        ModelError: GPT-2 with attention scaled by the number of the layer.
    """
    if read_json(folder / CONFIG).get("scale_attn_by_inverse_layer_idx"):
        raise ModelError(
            f"{field} adds layers, but {folder} scales the attention of each layer by its number"
            " (scale_attn_by_inverse_layer_idx): the layers above the new ones would compute something else",
            "choose a model without this setting, or another method",
        )


def grow_layer_lists(config: Any, sources: Sequence[int]) -> None:
    """Grows what a config of transformers lists for each layer, such as `layer_types`, with the layers.

    Args:
        config: still with its old number of layers.
        sources: for each layer of the larger model, the layer that it is or copies.
    """
    layers = max(sources) + 1
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, list) and len(value) == layers:
            setattr(config, name, [value[source] for source in sources])
