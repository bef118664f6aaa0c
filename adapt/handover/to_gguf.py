"""Kind `gguf` of `export.kinds`: one file with weights and tokenizer that llama.cpp, Ollama and LM Studio load.

The package gguf writes the file. It is then read back, and each weight is compared with that of the model. Tests
compare the tokens and logits of tiny models with those of the reader of GGUF in transformers. llama.cpp itself has no
wheel, so no test runs it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, ModelKind
from adapt.handover.gguf_vocabulary import read_vocabulary
from adapt.runner.files import make_folder
from adapt.support.errors import ConfigError

FOLDER = "gguf"
ARCHITECTURES = {"gpt2": "GPT2", "llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""Architectures of the package gguf, keyed by model_type in config.json."""


@dataclass(frozen=True)
class GgufOptions:
    """Options of `gguf`."""

    type: Literal["f32", "f16", "bf16", "q8_0"] = "f16"
    """Type in which matrices are stored: 4, 2, 2 or about 1.06 bytes per weight. Vectors are stored as f32, and
    matrices whose rows do not consist of blocks of 32 weights as f16 instead of q8_0. llama.cpp makes smaller types,
    such as Q4_K_M, from an f16 file."""


def scalings(model_type: str) -> tuple[str, ...]:
    """Returns the scalings of the rotary embedding that a GGUF file can hold for an architecture.

    For `llama` and `mistral`, llama.cpp reads one factor per frequency (`rope_freqs.weight`). For others it reads the
    type and factor of a linear scaling only.
    """
    return ("default", "linear", "llama3") if ARCHITECTURES[model_type] == "LLAMA" else ("default", "linear")


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
        from adapt.handover.gguf_file import write_gguf

        make_folder(exported.folder / FOLDER)
        target = exported.folder / FOLDER / f"model-{self.options.type}.gguf"
        difference = write_gguf(exported, target, self.options.type)
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
