"""Kind `gguf` of `export.kinds`: one file with weights and tokenizer that llama.cpp, Ollama and LM Studio load.

The package gguf writes the file. It is then read back, and each weight is compared with that of the model. Tests
compare the tokens and logits of tiny models with those of the reader of GGUF in transformers. llama.cpp itself has no
wheel, so no test runs it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, ModelKind
from adapt.handover.gguf_tensors import ARCHITECTURES, converted, scalings, write_shape
from adapt.handover.gguf_vocabulary import read_vocabulary
from adapt.runner.files import file_aside, make_folder
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

FOLDER = "gguf"
ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 1 / 127}
"""Largest difference of a weight from its rounded value, as a share of the largest weight of its tensor."""


@dataclass(frozen=True)
class GgufOptions:
    """Options of `gguf`."""

    type: Literal["f32", "f16", "bf16", "q8_0"] = "f16"
    """Type in which matrices are stored: 4, 2, 2 or about 1.06 bytes per weight. Vectors are stored as f32, and
    matrices whose rows do not consist of blocks of 32 weights as f16 instead of q8_0. llama.cpp makes smaller types,
    such as Q4_K_M, from an f16 file."""


class ToGguf(ExportKind):
    """Writes gguf/model-TYPE.gguf."""

    Options = GgufOptions
    packages = ("gguf",)
    extra = "gguf"

    def refuse(self, config: Config, model: Path) -> None:
        """Refuses encoders, and decoders whose architecture, tokenizer or scaling of positions GGUF cannot hold."""
        kind = ModelKind.of(model)
        if config.objective.kind != "causal":
            raise ConfigError(
                f"export.kinds: llama.cpp generates text with decoders, and {kind.model_type} is trained as an encoder,"
                " so it cannot be exported as gguf",
                "remove gguf from export.kinds; for an encoder, use onnx",
            )
        if kind.model_type not in ARCHITECTURES:
            raise ConfigError(
                f"export.kinds: gguf is not available for {kind.model_type} models",
                f"remove gguf from export.kinds, or convert the folder with llama.cpp; gguf knows"
                f" {', '.join(ARCHITECTURES)}",
            )
        self._refuse_positions(kind)
        read_vocabulary(model)

    def _refuse_positions(self, kind: ModelKind) -> None:
        scaling = kind.values.get("rope_parameters") or kind.values.get("rope_scaling") or {}
        scaled = str(scaling.get("rope_type", scaling.get("type", "default")))
        window, longest = kind.values.get("sliding_window"), kind.values.get("max_position_embeddings", 0)
        is_windowed = window and window < longest and kind.values.get("use_sliding_window", True)
        if scaled not in scalings(kind.model_type) or is_windowed:
            what = f"attends to the last {window} tokens only" if is_windowed else f"scales positions by {scaled}"
            raise ConfigError(
                f"export.kinds: the model {what}, which gguf does not hold for {kind.model_type} models",
                "remove gguf from export.kinds",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes the file, reads it back, and compares all weights.

        Raises:
            ModelError: a weight has no name in GGUF, or differs by more than the rounding of its type.
        """
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(exported.folder)
        make_folder(exported.folder / FOLDER)
        target = exported.folder / FOLDER / f"model-{self.options.type}.gguf"
        with file_aside(target) as file:
            write_file(file, exported, config, self.options.type)
            difference = rounding_difference(file, exported.folder, config, self.options.type)
        return HandedOver("gguf", [str(target.relative_to(exported.folder))], difference)

    def example(self, exported: ExportedModel) -> str:
        """Returns the commands that generate text with llama.cpp and Ollama."""
        file = f"{FOLDER}/model-{self.options.type}.gguf"
        return f"""\
llama.cpp and Ollama:

```sh
llama-cli -m {file} -p "The"
echo "FROM ./{file}" > Modelfile && ollama create adapted -f Modelfile && ollama run adapted "The"
```"""


def write_file(file: Path, exported: ExportedModel, config: Any, kind: str) -> None:
    """Writes a GGUF file. Converts the weights twice, first for their sizes, so that memory does not grow with them."""
    import gguf
    from transformers import AutoTokenizer

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


def stored_type(name: str, weight: np.ndarray[Any, Any], kind: str) -> GGMLQuantizationType:
    """Returns the type in which a weight is stored. llama.cpp computes with vectors and positions in float32."""
    import gguf

    if weight.ndim < 2 or name.startswith("position_embd"):
        return gguf.GGMLQuantizationType.F32
    if kind == "q8_0" and weight.shape[-1] % 32:
        return gguf.GGMLQuantizationType.F16
    return gguf.GGMLQuantizationType[kind.upper()]


def rounding_difference(file: Path, folder: Path, config: Any, kind: str) -> float:
    """Reads a GGUF file, and returns the largest absolute difference of a weight from that of the model.

    Raises:
        ModelError: a weight is missing, or differs by more than the rounding of its type.
    """
    import gguf

    worst = 0.0
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}  # mapped into memory when they are used
    for name, weight in converted(folder, config):
        if name not in stored:
            raise ModelError(f"{file} lacks the weight {name}", "run the export again")
        found = gguf.dequantize(stored[name].data, stored[name].tensor_type).reshape(weight.shape)
        difference = float(np.abs(found - weight).max(initial=0.0))
        allowed = max(ROUNDING[kind], ROUNDING["f16"] if kind == "q8_0" else 0.0)
        if not difference <= allowed * float(np.abs(weight).max(initial=0.0)):
            raise ModelError(
                f"the weight {name} of {file} differs by {difference:.2g} from that of the model",
                f"weights beyond 65,504 need gguf.type bf16 or f32 (now {kind})",
            )
        worst = max(worst, difference)
    return worst
