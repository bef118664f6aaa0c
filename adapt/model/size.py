"""Reads the size of a model from its config.json and the headers of its weights. Loads no torch or transformers."""

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
"""Names that architectures use for each dimension in config.json."""
DEFAULTS = {"bert": 0.1, "roberta": 0.1, "distilbert": 0.1, "electra": 0.1, "gpt2": 0.1}
"""Default dropout of the attention weights if config.json has none, by model type."""
TABLE = re.compile(r"(embeddings|embed_tokens|embed_positions|embed_in|tokens_embed|positions_embed|wte|wpe)\.weight$")
"""Pattern of the names of tables of embeddings. Names of openai-gpt end in `tokens_embed` and `positions_embed`."""
IN_LAYER = re.compile(r"\.(\d+)\.")
EXPERTS = "domain_experts"
"""Name of the submodule in which a linear layer stores its domain experts, one copy of the layer per domain. A token
passes through at most one copy."""
OF_METHODS = re.compile(rf"\.({EXPERTS}|adapters|plugins|unit_masks)\.")
"""Pattern of the names of modules that methods add. `layer_parameters` does not count their matrices.

Methods such as `adapters` count the work of these modules, because each token passes through only one domain's module.
"""
EXBERT = "exbert"
"""Name, in a model's list of additions, of the smaller layers next to all layers (`adapt.model.additions.exbert`)."""
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Ends of names in old checkpoints, such as google-bert/bert-base-uncased, mapped to the current ends."""
UNUSED = ("pooler.", "seq_relationship.")
"""Parts of names of weights that pre-training does not use."""
REAL = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
"""Floating-point types in headers of safetensors files."""


@dataclass(frozen=True)
class ModelSize:
    """The dimensions of a transformer that determine its memory and its work."""

    parameters: int
    """Number of parameters. Tied parameters count once."""
    layer_parameters: int
    """Total number of elements of the matrices that process a token in the layers."""
    head_parameters: int
    """Total number of elements of the matrices that process a predicted token in the language-model head."""
    layers: int
    hidden: int
    """Width of the hidden states."""
    attention: int
    """Total width of the queries of a token, over all heads."""
    heads: int
    inner: int
    """Width inside the feed-forward blocks."""
    vocabulary: int
    gated: bool
    """Whether the feed-forward blocks multiply two projections (GLU)."""
    activation: str
    """Name of the activation function of the feed-forward blocks."""
    root_mean_square: bool
    """Whether the model uses RMSNorm instead of LayerNorm."""
    attention_dropout: float
    """Dropout of the attention weights, which some attention kernels do not support."""
    embedding_parameters: int
    """Number of elements of the token embeddings."""
    is_tied: bool = True
    """Whether token embeddings and language-model head share one table."""
    beside: int = 1
    """Number of parallel layers per depth: 2 with exBERT's module, else 1. `heads` and `inner` count both layers."""
    kind: str = ""
    """`model_type` of the checkpoint."""
    tensors: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """Pairs of name and number of elements, one pair per tensor of the checkpoint."""

    def with_tokens(self, added: int) -> ModelSize:
        """Returns the size of the model with more tokens in its vocabulary."""
        row = added * self.embedding_parameters // self.vocabulary
        return replace(
            self,
            parameters=self.parameters + row * (1 if self.is_tied else 2),
            head_parameters=self.head_parameters + row,
            embedding_parameters=self.embedding_parameters + row,
            vocabulary=self.vocabulary + added,
        )

    def with_matrices(self, added: float) -> ModelSize:
        """Returns the size after matrices with `added` elements in total were added to the layers."""
        return replace(self, layer_parameters=self.layer_parameters + round(added))

    def first_layers(self, count: int) -> ModelSize:
        """Returns the size of the model's embeddings and first layers, with a head for masked tokens."""
        layers, width = self.layer_parameters * count // self.layers, self.embedding_parameters // self.vocabulary
        head = self.hidden * width
        return replace(
            self,
            parameters=self.embedding_parameters + layers + head,
            layer_parameters=layers,
            head_parameters=head + self.embedding_parameters,
            layers=count,
        )

    def with_generator(self, generator: ModelSize, is_shared: bool) -> ModelSize:
        """Returns the combined size of this model, as a detector of replaced tokens, and its generator.

        The generator's layers count as additional layers of this model's width.

        Args:
            generator: size of the generator. Its head runs only at the predicted positions.
            is_shared: whether both models share one table of token embeddings.
        """
        more = max(1, -(-generator.layers * generator.hidden // self.hidden))
        layers = self.layers + more

        def mean(own: int, other: int) -> int:
            return -(-(own * self.layers + other * generator.layers) // layers)

        return replace(
            self,
            parameters=self.parameters + generator.parameters - (self.embedding_parameters if is_shared else 0),
            layer_parameters=self.layer_parameters + generator.layer_parameters + self.hidden**2,
            head_parameters=generator.head_parameters,
            layers=layers,
            attention=mean(self.attention, generator.attention),
            heads=mean(self.heads, generator.heads),
            inner=mean(self.inner, generator.inner),
            tensors=(),
        )

    def with_layers_beside(self, share: float) -> ModelSize:
        """Returns the size with exBERT's module.

        Args:
            share: number of heads and of inner neurons in exBERT's smaller layers, divided by the number in the
                model's own layers.
        """
        heads, inner = (max(1, round(share * number)) for number in (self.heads, self.inner))
        attention = heads * self.attention // self.heads
        matrices = self.layers * self.hidden * (4 * attention + (3 if self.gated else 2) * inner + 1)  # 1 for the gate
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
    """Reads the dimensions of a checkpoint; returns None if its config.json uses unknown names for them.

    Raises:
        ModelError: a file is missing or invalid.
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
    copies = sum(output.values()) if _tied(config) else 0  # some checkpoints store the tied matrix twice
    inner, width = dimensions["inner"] or 4 * hidden, config.get("head_dim") or hidden // heads
    module = next((entry for entry in config.get("additions") or () if entry.get("kind") == EXBERT), None)
    further = (module["heads"], module["inner"]) if module else (0, 0)
    # number of layers with separate weights: ALBERT runs one layer several times
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
        tensors=tuple(sorted((name, math.prod(shape)) for name, shape in shapes.items())),
    )


def first_setting(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """Returns the value of the first of `keys` that a config.json has; None if it has none of these keys."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _tied(config: dict[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", config.get("model_type") not in UNTIED))


UNTIED = {"llama", "mistral", "qwen2", "qwen3", "gpt_neox", "phi", "olmo"}
"""Model types whose head has its own weights by default."""


def _is_gated(matrices: dict[str, int], shapes: Shapes, hidden: int, inner: int) -> bool:
    if any("gate_proj" in name for name in matrices):
        return True
    return any(shapes[name] in ((2 * inner, hidden), (hidden, 2 * inner)) for name in matrices)


def current_name(name: str) -> str:
    """Returns the name that a tensor of a checkpoint has in the loaded model, where old names are replaced."""
    for old, new in OLD.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def tensor_shapes(folder: Path) -> Shapes:
    """Returns the shapes of a checkpoint's trained tensors by current name, from the headers of its weights."""
    shapes: Shapes = {}
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            shapes |= {
                current_name(name): tuple(tensor["shape"])
                for name, tensor in read_header(file).items()
                if tensor["dtype"] in REAL and len(tensor["shape"]) < 4 and not any(part in name for part in UNUSED)
            }
    return shapes


def token_table(folder: Path) -> tuple[tuple[int, ...], bytes] | None:
    """Returns shape and content of a model's token embeddings; None if the model has no table `word_embeddings`."""
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            continue
        for name, tensor in read_header(file).items():
            if name.endswith("word_embeddings.weight"):
                begin, end = tensor["data_offsets"]
                with file.open("rb") as content:
                    content.seek(8 + int.from_bytes(content.read(8), "little") + begin)
                    return tuple(tensor["shape"]), content.read(end - begin)
    return None


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Reads type, shape and byte offsets of each tensor from the header of a safetensors file.

    A file begins with the length of its header in 8 bytes, followed by the header in JSON.

    Raises:
        ModelError: the file is not a complete safetensors file.
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
            f"{file} is a Git LFS pointer, not a safetensors file: the weights themselves were not fetched",
            "run `git lfs install` and `git lfs pull` in that folder, or download the model again",
        )
    if not is_complete:
        raise ModelError(
            f"{file} cannot be read: it is truncated, or not a safetensors file", "copy or download the model again"
        )
    return tensors
