"""Writes a GGUF file (`gguf` in `export.kinds`) with weights and tokenizer, for llama.cpp, Ollama and LM Studio.

The package gguf writes the file. It is then read back, and each weight is compared with the model's weight. For
tiny models, tests also load the file with transformers, and compare tokens and logits with the original's. No test
runs llama.cpp itself, because it has no wheel.

The tokenizer is written from tokenizer.json. llama.cpp has its own tokenizers. Two of them cover the decoders that
dontstop can export: `gpt2`, byte-level BPE, for which the file also names the regular expression that splits a text
before BPE; and `llama`, BPE on characters, which splits unknown characters into bytes and orders merges by the scores
of the tokens. A tokenizer of another form is refused, because llama.cpp would split texts into different tokens than in
training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, model_type
from adapt.model.locate import CONFIG, read_json
from adapt.runner.files import make_folder
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFWriter


FOLDER = "gguf"
ARCHITECTURES = {"gpt2": "GPT2", "llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""Architectures of the package gguf, keyed by model_type in config.json."""


@dataclass(frozen=True)
class GgufOptions:
    """Options of `gguf`."""

    type: Literal["f32", "f16", "bf16", "q8_0"] = "f16"
    """Number type of stored matrices: 4, 2, 2 or about 1.06 bytes per weight. Vectors are stored as f32. If the length
    of a matrix's rows is no multiple of 32, f16 replaces q8_0. llama.cpp converts an f16 file to smaller types, such as
    Q4_K_M."""


def scalings(model_type: str) -> tuple[str, ...]:
    """Returns the kinds of rotary embedding scaling that a GGUF file can store for an architecture.

    For `llama` and `mistral`, llama.cpp reads one factor per frequency (`rope_freqs.weight`). For other architectures,
    it only reads the factor of a linear scaling.
    """
    return ("default", "linear", "llama3") if ARCHITECTURES[model_type] == "LLAMA" else ("default", "linear")


class ToGguf(ExportKind):
    """Writes gguf/model-TYPE.gguf for llama.cpp."""

    Options = GgufOptions
    packages = ("gguf",)
    extra = "gguf"

    def refuse(self, config: Config, model: Path) -> None:
        """Raises an error for encoders, and for decoders with parts that GGUF cannot store, such as their tokenizer."""
        kind = model_type(model)
        if config.objective.kind != "causal":
            raise ConfigError(
                f"export.kinds: llama.cpp generates text with decoders, but {kind} is trained as an encoder,"
                " so it cannot be exported as gguf",
                "remove gguf from export.kinds; for an encoder, use onnx",
            )
        if kind not in ARCHITECTURES:
            raise ConfigError(
                f"export.kinds: gguf is not available for {kind} models",
                f"remove gguf from export.kinds, or convert the folder with llama.cpp; gguf supports"
                f" {', '.join(ARCHITECTURES)}",
            )
        self._refuse_positions(kind, read_json(model / CONFIG))
        read_vocabulary(model)

    def _refuse_positions(self, kind: str, values: Mapping[str, Any]) -> None:
        scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
        scaled = str(scaling.get("rope_type", scaling.get("type", "default")))
        window, longest = values.get("sliding_window"), values.get("max_position_embeddings", 0)
        is_windowed = window and window < longest and values.get("use_sliding_window", True)
        if scaled not in scalings(kind) or is_windowed:
            what = f"attends to the last {window} tokens only" if is_windowed else f"scales positions by {scaled}"
            raise ConfigError(
                f"export.kinds: the model {what}, which a GGUF file cannot store for {kind} models",
                "remove gguf from export.kinds",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes the file, reads it back, and compares all weights."""
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


FILE = "tokenizer.json"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORDS}|\p{{N}}{{1,3}}|{_REST}": "llama-bpe",
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORDS}|\p{{N}}|{_REST}": "qwen2",
}
"""llama.cpp's names for the regular expressions with which the tokenizers of Llama 3 and Qwen2 split a text
(`src/llama-vocab.cpp`)."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens in GGUF."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model as llama.cpp needs them."""

    model: Literal["gpt2", "llama"]
    """Name of the tokenizer in llama.cpp."""
    pre: str
    """llama.cpp's name of the regular expression that splits a text. `default` for the tokenizer `llama`."""
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    """Merges in their order, each as two tokens with a space between them."""
    scores: Sequence[float]
    """Score of each token. The merge with the highest score is applied first. Only used by the tokenizer `llama`."""
    add_space: bool
    """Whether a space is put before a text. Only used by the tokenizer `llama`."""

    def write(self, writer: GGUFWriter) -> None:
        """Adds the tokens to the header of a GGUF file."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.model == "gpt2":
            writer.add_token_merges(self.merges)
        else:
            writer.add_token_scores(self.scores)
            writer.add_add_space_prefix(self.add_space)


def read_vocabulary(folder: Path, size: int | None = None) -> Vocabulary:
    """Reads the tokens of a model.

    Args:
        folder: folder with tokenizer.json.
        size: number of rows of the model's embedding, if it may be larger than the number of tokens. Rows without a
            token get names that occur in no text.

    Raises:
        ConfigError: llama.cpp has no tokenizer of this form.
    """
    file = folder / FILE
    if not file.is_file():
        raise ConfigError(f"export.kinds: gguf needs {file}, which does not exist", "remove gguf from export.kinds")
    content = read_json(file)
    bpe = content.get("model") or {}
    if bpe.get("type") != "BPE" or bpe.get("dropout"):
        raise ConfigError(
            f"export.kinds: gguf needs a BPE tokenizer without dropout, but the tokenizer of {folder} has the type"
            f" {bpe.get('type')}",
            "remove gguf from export.kinds",
        )
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    added = {entry["content"]: (entry["id"], bool(entry["special"])) for entry in content.get("added_tokens") or []}
    ids = {**bpe["vocab"], **{token: number for token, (number, _) in added.items()}}
    count = max([max(ids.values()) + 1, size or 0])
    tokens, types = [f"[PAD{number}]" for number in range(count)], [UNUSED] * count
    is_llama = bool(bpe.get("byte_fallback"))
    for token, number in ids.items():
        tokens[number], types[number] = token, NORMAL
        if is_llama and len(token) == 6 and token.startswith("<0x"):
            types[number] = BYTE
        if token in added:
            types[number] = CONTROL if added[token][1] else USER_DEFINED
        if token == bpe.get("unk_token"):
            types[number] = UNKNOWN
    if not is_llama:
        return Vocabulary("gpt2", split_name(content, folder), tokens, types, merges, [], False)
    order: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        order.setdefault(merge.replace(" ", "", 1), rank)
    scores = [float(-order.get(token, len(merges))) for token in tokens]
    return Vocabulary("llama", "default", tokens, types, merges, scores, puts_space(content))


def split_name(tokenizer: Mapping[str, Any], folder: Path) -> str:
    """Returns llama.cpp's name for the rule with which a byte-level tokenizer splits a text before BPE."""
    parts = _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    kinds = [part["type"] for part in parts]
    if tokenizer.get("normalizer") is None or _is_nfc(tokenizer["normalizer"]):
        bytewise = parts[-1] if kinds[-1:] == ["ByteLevel"] and not parts[-1].get("add_prefix_space") else {}
        if kinds == ["ByteLevel"] and bytewise and bytewise.get("use_regex", True):
            return "gpt-2"
        has_digits = kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits")
        if has_digits and bytewise and bytewise.get("use_regex", True):
            return "smollm"
        if kinds == ["Split", "ByteLevel"] and bytewise and not bytewise.get("use_regex", True):
            expression = (parts[0].get("pattern") or {}).get("Regex", "")
            if parts[0].get("behavior") == "Isolated" and expression in SPLITS:
                return SPLITS[expression]
    raise ConfigError(
        f"export.kinds: gguf does not support the way in which the tokenizer of {folder} splits text"
        f" (pre_tokenizer: {json.dumps(tokenizer.get('pre_tokenizer'))[:200]})",
        "remove gguf from export.kinds; gguf supports the tokenizers of GPT-2, Llama, Mistral, Qwen2 and SmolLM",
    )


def puts_space(tokenizer: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer of the form `llama` puts a space before a text."""
    normalizers = _parts(tokenizer.get("normalizer"), "normalizers")
    parts = [*normalizers, *_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    return any(
        part["type"] == "Prepend" or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )


def _parts(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Returns the steps of a normalizer or pre-tokenizer, which may be a sequence of steps."""
    if part is None:
        return []
    return list(part[name]) if part["type"] == "Sequence" else [part]


def _is_nfc(normalizer: Mapping[str, Any]) -> bool:
    """Returns whether a normalizer only composes characters (NFC). llama.cpp skips this step, even for Qwen2."""
    return all(part["type"] == "NFC" for part in _parts(normalizer, "normalizers"))
