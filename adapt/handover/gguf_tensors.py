"""Converts the weights of decoders to the names and layouts of llama.cpp.

GGUF files have the weights of each architecture in the layout that llama.cpp computes with:

- The rotary embedding of `llama` and `mistral` turns neighbouring numbers of a head (arXiv 2104.09864). That of
  transformers turns the numbers of its two halves, so the rows of the queries' and keys' weights are interleaved.
- GPT-2's layers are stored transposed.

The names come from the package gguf. Weights are read one at a time, so memory does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adapt.model.locate import INDEX, weight_files
from adapt.support.errors import ModelError

if TYPE_CHECKING:
    from gguf import GGUFWriter

Array = NDArray[np.float32]
ARCHITECTURES = {"gpt2": "GPT2", "llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""Architectures of the package gguf, keyed by model_type in config.json."""
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Ends of the names of tensors in old checkpoints that are no weights."""


def scalings(model_type: str) -> tuple[str, ...]:
    """Returns the scalings of the rotary embedding that a GGUF file can hold for an architecture.

    For `llama` and `mistral`, llama.cpp reads one factor per frequency (`rope_freqs.weight`). For others it reads the
    type and factor of a linear scaling only.
    """
    return ("default", "linear", "llama3") if ARCHITECTURES[model_type] == "LLAMA" else ("default", "linear")


def converted(folder: Path, config: Any) -> Iterator[tuple[str, Array]]:
    """Yields the weights of a model by their names in GGUF.

    Args:
        folder: folder of the model.
        config: its configuration in transformers.

    Raises:
        ModelError: the architecture has a weight without a name in GGUF.
    """
    import gguf

    architecture = gguf.MODEL_ARCH[ARCHITECTURES[config.model_type]]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    factors = frequency_factors(config) if ARCHITECTURES[config.model_type] == "LLAMA" else None
    if factors is not None:  # llama.cpp refuses the tensor in models of other architectures
        yield "rope_freqs.weight", factors
    for name, weight in stored(folder):
        if name.endswith(BUFFERS) or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ModelError(f"{folder}: GGUF has no name for the weight {name}", "remove gguf from export.kinds")
        yield target, laid_out(target, weight, config)


def stored(folder: Path) -> Iterator[tuple[str, Array]]:
    """Yields the weights of a model in float32, by their names in transformers."""
    import torch
    from safetensors import safe_open

    for file in weight_files(folder):
        if file.name == INDEX:
            continue
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118  # safe_open returns no mapping
                yield name, weights.get_tensor(name).to(torch.float32).numpy()


def laid_out(name: str, weight: Array, config: Any) -> Array:
    """Returns a weight in the layout of llama.cpp.

    Args:
        name: name of the weight in GGUF.
        weight: the weight in the layout of transformers.
        config: the model's configuration in transformers.
    """
    part = name.split(".")[-2]
    if config.model_type == "gpt2":
        is_layer = name.endswith(".weight") and part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
        return np.ascontiguousarray(weight.T) if is_layer else weight
    if ARCHITECTURES[config.model_type] == "LLAMA" and part in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        return interleaved(weight, heads)
    return weight


def interleaved(weight: Array, heads: int) -> Array:
    """Changes the rows of each head from [first half, second half] to pairs of one row of each half."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def frequency_factors(config: Any) -> Array | None:
    """Returns by how much a model's rotary embedding turns more slowly than an unscaled one, per pair of numbers.

    Returns:
        None if the model does not scale its frequencies.
    """
    if rope_type(config) == "default":
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS[rope_type(config)](config, None)
    exponents = np.arange(0, head_size(config), 2) / head_size(config)
    plain = 1.0 / config.rope_parameters["rope_theta"] ** exponents
    return np.asarray(plain / scaled.numpy(), dtype=np.float32)


def rope_type(config: Any) -> str:
    """Returns how a model scales the frequencies of its rotary embedding, such as `llama3`, or `default`."""
    found: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    return str(found.get("rope_type", "default"))


def head_size(config: Any) -> int:
    """Returns the number of dimensions of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def write_shape(writer: GGUFWriter, config: Any) -> None:
    """Adds the sizes of a model, and the scaling of positions that its tensors do not hold, to a GGUF file's header."""
    import gguf

    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if ARCHITECTURES[config.model_type] != "LLAMA" and rope_type(config) == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_rope_dimension_count(head_size(config))
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
