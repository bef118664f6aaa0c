"""How large a model is, from its config.json and the headers of its weights. Loads neither torch nor transformers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapt.model.locate import CONFIG, read_json, weight_files
from adapt.support.errors import ModelError

Shapes = dict[str, tuple[int, ...]]

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "inner": ("intermediate_size", "n_inner", "hidden_dim", "ffn_dim"),
    "activation": ("hidden_act", "activation_function", "hidden_activation", "activation"),
    "attention_dropout": ("attention_probs_dropout_prob", "attn_pdrop", "attention_dropout"),
    "positions": ("max_position_embeddings", "n_positions"),
}
"""What config.json calls a dimension, by architecture."""
DEFAULTS = {"bert": 0.1, "roberta": 0.1, "distilbert": 0.1, "electra": 0.1, "gpt2": 0.1}
"""Dropout of the attention weights where config.json leaves it out, by model type."""
TABLE = re.compile(r"(embeddings|embed_tokens|embed_positions|embed_in|wte|wpe)\.weight$")
IN_LAYER = re.compile(r"\.(\d+)\.")
EXPERTS = "domain_experts"
"""What a linear layer calls its copies for single domains, of which one computes in its place: a token passes one."""
OF_METHODS = re.compile(rf"\.({EXPERTS}|adapters|plugins|unit_masks)\.")
"""Parts of a layer whose work the method that trains them counts, since a token passes those of one domain."""
EXBERT = "exbert"
"""The addition that puts a smaller layer beside each (`adapt.model.additions.exbert`)."""
UNUSED = ("pooler.", "seq_relationship.")
"""Parts of a checkpoint that pre-training does not run."""
REAL = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}


@dataclass(frozen=True)
class ModelSize:
    """The dimensions of a transformer that memory and work depend on."""

    parameters: int
    """Trained numbers; tied ones count once."""
    layer_parameters: int
    """Elements of the matrices that a token is multiplied with in all layers together."""
    head_parameters: int
    """Elements of the matrices that a predicted token is multiplied with in the language-model head."""
    layers: int
    hidden: int
    """Width of the hidden states."""
    attention: int
    """Width of all queries of a token together."""
    heads: int
    inner: int
    """Width inside the feed-forward blocks."""
    vocabulary: int
    gated: bool
    """Whether the feed-forward blocks multiply two projections (GLU)."""
    activation: str
    """Name of their activation function."""
    root_mean_square: bool
    """RMSNorm in place of LayerNorm."""
    attention_dropout: float
    """Dropout of the attention weights, which some kernels cannot do."""
    embedding_parameters: int
    """Elements of the embeddings of tokens."""
    is_tied: bool = True
    """Whether embeddings and language-model head are one table."""
    beside: int = 1
    """Layers that stand side by side in each place: 2 with exBERT's module, whose heads and neurons count with those of
    the model."""
    kind: str = ""
    """`model_type` of the checkpoint."""
    tensors: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """Name and number of elements of each tensor of the checkpoint."""

    def with_tokens(self, added: int) -> ModelSize:
        """The same with so many tokens more."""
        row = added * self.embedding_parameters // self.vocabulary
        return replace(
            self,
            parameters=self.parameters + row * (1 if self.is_tied else 2),
            head_parameters=self.head_parameters + row,
            embedding_parameters=self.embedding_parameters + row,
            vocabulary=self.vocabulary + added,
        )

    def with_matrices(self, added: float) -> ModelSize:
        """The same with so many elements more, in matrices of the layers that are held beside the model."""
        return replace(self, layer_parameters=self.layer_parameters + round(added))

    def with_layers_beside(self, share: float) -> ModelSize:
        """The same with exBERT's module, whose layers have a share of the heads and inner neurons of the model's."""
        heads, inner = (max(1, round(share * number)) for number in (self.heads, self.inner))
        attention = heads * self.attention // self.heads
        matrices = self.layers * self.hidden * (4 * attention + (3 if self.gated else 2) * inner + 1)  # and the gate
        return replace(
            self,
            parameters=self.parameters + matrices,
            layer_parameters=self.layer_parameters + matrices,
            attention=self.attention + attention,
            heads=self.heads + heads,
            inner=self.inner + inner,
            beside=2,
        )


def model_size(folder: Path) -> ModelSize | None:
    """Reads the dimensions of a checkpoint; None where its config.json names them in a way unknown here.

    Raises:
        ModelError: a file is missing, or is not what its name says.
    """
    config = read_json(folder / CONFIG)
    dimensions = {name: first_setting(config, keys) for name, keys in ALIASES.items()}
    hidden, layers, heads = (dimensions[name] for name in ("hidden", "layers", "heads"))
    if not (hidden and layers and heads and "vocab_size" in config):
        return None
    shapes = tensor_shapes(folder)
    tables = {name: shape for name, shape in shapes.items() if TABLE.search(name) and not IN_LAYER.search(name)}
    matrices = {
        name: math.prod(shape)
        for name, shape in shapes.items()
        if len(shape) == 2 and name not in tables and not OF_METHODS.search(name)
    }
    repeated = {name: size for name, size in matrices.items() if IN_LAYER.search(name)}
    if not repeated:
        return None
    outside = {name: size for name, size in matrices.items() if name not in repeated}
    words = next((shape for shape in tables.values() if shape[0] == config["vocab_size"]), None)
    if words is None:
        return None
    output = {name: size for name, size in outside.items() if shapes[name] == words}
    projections = sum(size for name, size in outside.items() if "embed" in name)
    transforms = sum(size for name, size in outside.items() if name not in output and "embed" not in name)
    copies = sum(output.values()) if _tied(config) else 0  # some checkpoints hold the tied matrix twice
    inner, width = dimensions["inner"] or 4 * hidden, config.get("head_dim") or hidden // heads
    module = next((entry for entry in config.get("additions") or () if entry.get("kind") == EXBERT), None)
    further = (module["heads"], module["inner"]) if module else (0, 0)
    # layers that have weights of their own: ALBERT runs one several times
    distinct = len({match[0] for name in repeated if (match := re.match(r".*?\.\d+\.", "." + name))})
    dropout = dimensions["attention_dropout"]
    if dropout is None:
        dropout = DEFAULTS.get(config.get("model_type", ""), 0.0)
    return ModelSize(
        parameters=sum(map(math.prod, shapes.values())) - copies,
        layer_parameters=sum(repeated.values()) * layers // distinct + projections,
        head_parameters=transforms + math.prod(words),
        layers=layers,
        hidden=hidden,
        attention=(heads + further[0]) * width,
        heads=heads + further[0],
        inner=inner + further[1],
        vocabulary=config["vocab_size"],
        gated=_is_gated(repeated, shapes, hidden, inner),
        activation=dimensions["activation"] or "gelu",
        root_mean_square="rms_norm_eps" in config,
        attention_dropout=float(dropout),
        embedding_parameters=math.prod(words),
        is_tied=_tied(config),
        beside=2 if module else 1,
        kind=str(config.get("model_type", "")),
        tensors=tuple((name, math.prod(shape)) for name, shape in shapes.items()),
    )


def first_setting(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first of some keys that a config.json has; None where it has none of them."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _tied(config: dict[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", config.get("model_type") not in UNTIED))


UNTIED = {"llama", "mistral", "qwen2", "qwen3", "gpt_neox", "phi", "olmo"}
"""Model types whose head has weights of its own unless config.json says otherwise."""


def _is_gated(matrices: dict[str, int], shapes: Shapes, hidden: int, inner: int) -> bool:
    if any("gate_proj" in name for name in matrices):
        return True
    return any(shapes[name] in ((2 * inner, hidden), (hidden, 2 * inner)) for name in matrices)


def tensor_shapes(folder: Path) -> Shapes:
    """Returns the shapes of a checkpoint's trained tensors by name, from the headers of its weights."""
    shapes: Shapes = {}
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            shapes |= {
                name: tuple(tensor["shape"])
                for name, tensor in read_header(file).items()
                if tensor["dtype"] in REAL and len(tensor["shape"]) < 4 and not any(part in name for part in UNUSED)
            }
    return shapes


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Type, shape and place of each tensor of a safetensors file: 8 bytes of length, and that much JSON.

    Raises:
        ModelError: the file is none.
    """
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        try:
            header = json.loads(content.read(length)) if length < size else {}
            tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
            is_complete = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values()) == size
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            is_complete = False
    if not is_complete and size < 1024 and file.read_bytes().startswith(b"version https://git-lfs"):
        raise ModelError(
            f"{file} is a pointer of Git LFS, and no safetensors file: the weights themselves were not fetched",
            "run `git lfs install` and `git lfs pull` in that folder, or download the model again",
        )
    if not is_complete:
        raise ModelError(
            f"{file} cannot be read: it is cut short, or no safetensors file", "copy or download the model again"
        )
    return tensors
