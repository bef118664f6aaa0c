"""Writes the weights of a decoder to a GGUF file, in the names and layouts of llama.cpp, and compares them.

GGUF files store the weights of each architecture in the layout that llama.cpp computes with:

- For `llama` and `mistral`, the rotary embedding (arXiv 2104.09864) of llama.cpp rotates pairs of neighbouring
  dimensions of a head. transformers pairs each dimension of the first half with a dimension of the second half.
  Therefore this module interleaves the rows of the queries' and keys' weights.
- GPT-2's layers are stored transposed.

The names come from the package gguf. Weights are read one at a time, so memory does not grow with the model.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adapt.handover.export_kind import ExportedModel
from adapt.handover.to_gguf import ARCHITECTURES, read_vocabulary
from adapt.model.locate import INDEX, weight_files
from adapt.runner.files import file_aside
from adapt.support.errors import ModelError

Array = NDArray[np.float32]
ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 1 / 127}
"""Maximum difference between a weight and its rounded value, relative to the largest weight of the tensor."""
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Suffixes of the names of tensors in old checkpoints that are not weights."""
HEAD = "lm_head.weight"
"""Name of the head in transformers. GGUF files of models with a tied head do not have it."""
TABLES = ("embed_tokens.weight", "wte.weight")
"""Ends of the names of tables of token embeddings in transformers."""


def write_gguf(exported: ExportedModel, target: Path, kind: str) -> float:
    """Writes a GGUF file, reads it back, and returns the largest absolute difference of its weights from the model's.

    Args:
        exported: the model.
        target: path of the file. An existing file is replaced only if the comparison succeeds.
        kind: number type of the stored matrices, such as `f16`.

    Raises:
        ModelError: a weight has no name in GGUF, or differs by more than the rounding of its type.
    """
    config = AutoConfig.from_pretrained(exported.folder)
    with file_aside(target) as file:
        write_file(file, exported, config, kind)
        return rounding_difference(file, exported.folder, config, kind)


def write_file(file: Path, exported: ExportedModel, config: Any, kind: str) -> None:
    """Writes a GGUF file. To keep only one weight in memory, converts each weight twice, first only to get its size."""
    folder, architecture = exported.folder, gguf.MODEL_ARCH[ARCHITECTURES[config.model_type]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    with closing(writer):
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(exported.config.name)
        if exported.config.export.license:
            writer.add_license(exported.config.export.license)
        file_types = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
        writer.add_file_type(gguf.LlamaFileType[file_types[kind]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        write_shape(writer, config)
        read_vocabulary(folder, config.vocab_size).write(writer)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for name in ("bos", "eos", "unk", "pad"):
            if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
                getattr(writer, f"add_{name}_token_id")(number)
        if tokenizer.bos_token_id is not None:
            writer.add_add_bos_token(tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id])
        if isinstance(tokenizer.chat_template, str):
            writer.add_chat_template(tokenizer.chat_template)
        for name, weight in converted(folder, config):
            shape, stored = weight.shape, stored_type(name, weight, kind)
            size = int(np.prod(gguf.quant_shape_to_byte_shape(shape, stored))) if weight.ndim else 4
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, weight in converted(folder, config):
            writer.write_tensor_data(gguf.quantize(weight, stored_type(name, weight, kind)))


def stored_type(name: str, weight: np.ndarray[Any, Any], kind: str) -> gguf.GGMLQuantizationType:
    """Returns the type in which a weight is stored. llama.cpp computes with vectors and positions in float32."""
    if weight.ndim < 2 or name.startswith("position_embd"):
        return gguf.GGMLQuantizationType.F32
    if kind == "q8_0" and weight.shape[-1] % 32:
        return gguf.GGMLQuantizationType.F16
    return gguf.GGMLQuantizationType[kind.upper()]


def rounding_difference(file: Path, folder: Path, config: Any, kind: str) -> float:
    """Reads a GGUF file, and returns the largest absolute difference of its weights from the model's."""
    worst = 0.0
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}  # memory-mapped, loaded when used
    for name, weight in converted(folder, config):
        if name not in stored:
            raise ModelError(f"{file} lacks the weight {name}", "run the export again")
        found = gguf.dequantize(stored[name].data, stored[name].tensor_type).reshape(weight.shape)
        difference = float(np.abs(found - weight).max(initial=0.0))
        allowed = max(ROUNDING[kind], ROUNDING["f16"] if kind == "q8_0" else 0.0)
        if not difference <= allowed * float(np.abs(weight).max(initial=0.0)):
            raise ModelError(
                f"the weight {name} in {file} differs by {difference:.2g} from the model's weight, which is more than"
                f" rounding to {kind} explains",
                f"if the model has weights above 65,504, set gguf.type to bf16 or f32 (now {kind})",
            )
        worst = max(worst, difference)
    return worst


def converted(folder: Path, config: Any) -> Iterator[tuple[str, Array]]:
    """Yields each weight of a model with its name in GGUF."""
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[config.model_type]]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    factors = frequency_factors(config) if ARCHITECTURES[config.model_type] == "LLAMA" else None
    if factors is not None:  # llama.cpp refuses this tensor in other architectures
        yield "rope_freqs.weight", factors
    for name, weight in stored(folder):
        if name.endswith(BUFFERS) or (name == HEAD and config.tie_word_embeddings and _is_table(weight, folder)):
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ModelError(f"{folder}: GGUF has no name for the weight {name}", "remove gguf from export.kinds")
        yield target, laid_out(target, weight, config)


def _is_table(head: Array, folder: Path) -> bool:
    """Returns whether a head equals the table of token embeddings. transformers 5 only ties stored heads that do."""
    return any(np.array_equal(head, table) for _, table in stored(folder, TABLES))


def stored(folder: Path, ends: str | tuple[str, ...] = "") -> Iterator[tuple[str, Array]]:
    """Yields each weight of a model in float32, with its name in transformers, if the name ends in one of `ends`."""
    for file in weight_files(folder):
        if file.name == INDEX:
            continue
        with safe_open(file, "pt") as weights:
            for name in (name for name in weights.keys() if name.endswith(ends)):  # noqa: SIM118  # no mapping
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
    """Reorders the rows of each head: alternates rows of the first half with rows of the second half."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def frequency_factors(config: Any) -> Array | None:
    """Returns the factors by which a model's scaling slows down its rotary embedding.

    Returns:
        A factor per pair of dimensions, [head size / 2]. None if the model does not scale its frequencies.
    """
    if rope_type(config) == "default":
        return None
    scaled, _ = ROPE_INIT_FUNCTIONS[rope_type(config)](config, None)
    exponents = np.arange(0, head_size(config), 2) / head_size(config)
    plain = 1.0 / config.rope_parameters["rope_theta"] ** exponents
    return np.asarray(plain / scaled.numpy(), dtype=np.float32)


def rope_type(config: Any) -> str:
    """Returns how a model's rotary embedding is scaled, such as `llama3`, or `default` for no scaling."""
    found: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    return str(found.get("rope_type", "default"))


def head_size(config: Any) -> int:
    """Returns the number of dimensions of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def write_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    """Adds a model's dimensions to the header of a GGUF file, and its scaling of positions if no tensor stores this."""
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
