"""Folders, files and addresses that are taken for a model: each is named for what it is, with the way to one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from adapt.errors import ModelError

ADAPTER, MODULES = "adapter_config.json", "modules.json"
"""What PEFT's adapters, and models of sentence-transformers, have beside their weights."""
_OTHERS = {
    "*.gguf": "GGUF, which is made for llama.cpp",
    "*.onnx": "ONNX",
    "*.h5": "TensorFlow's",
    "*.msgpack": "Flax's",
    "*.ckpt*": "a checkpoint of another library",
    "*.pth": "a pickle, which is not read because it can run code",
    "*.pt": "a pickle, which is not read because it can run code",
}
"""Forms of weights that are not read here."""
_IN_HUB = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)(?:/(?:tree|blob|resolve)/([^/?#]+))?"
)


def mistaken_address(path: str) -> ModelError | None:
    """The error for the address of a page in place of a Hugging Face id; None for anything else."""
    if found := _IN_HUB.match(path):
        revision = f" and model.revision to {found[2]}" if found[2] and found[2] != "main" else ""
        return ModelError(f"model.path is {path}, the address of a page", f"set model.path to {found[1]}{revision}")
    if re.match(r"\w+://", path):
        return ModelError(
            f"model.path is {path}, but models are read from folders, and from the Hugging Face Hub by id",
            "download the model into a folder, and set model.path to that folder",
        )
    return None


def mistaken_file(file: Path) -> ModelError:
    """The error for a file in place of the folder of a model."""
    if file.suffix in (".zip", ".tar", ".gz", ".tgz"):
        return ModelError(f"{file} is an archive", "unpack it, and give the folder that holds the model's config.json")
    if file.suffix == ".gguf":
        return ModelError(f"{file} is a file in the form {_OTHERS['*.gguf']}", _ORIGINAL)
    fix = "give the folder that holds the model's config.json"
    if (file.parent / "config.json").is_file():
        fix = f"give the folder that it is in: {file.parent}"
    return ModelError(f"{file} is a file", fix)


def mistaken_folder(folder: Path, name: str) -> ModelError | None:
    """The error for a folder that has no config.json, or no weights in safetensors, and is something that is known.

    Args:
        folder: without one of the two.
        name: what the user calls it.

    Returns:
        None where it is nothing that is known.
    """
    if not any(folder.iterdir()):
        return ModelError(f"{name} is an empty folder", "correct model.path, or copy the model there again")
    if (folder / ADAPTER).is_file():
        return _adapter(folder, name)
    if (folder / MODULES).is_file() and (inner := _transformer_of(folder)):
        return ModelError(
            f"{name} is a model of sentence-transformers, and its transformer is in the folder {inner.name}",
            f"set model.path to {inner}; it must have its language-model head",
        )
    if (folder / "config.json").is_file():
        return None
    places = (*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json"))
    if inside := sorted(str(file.parent) for file in places):
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        return ModelError(
            f"{name} has no config.json, but folders in it do: {', '.join(inside[:3])}{more}",
            f"set model.path to the one that you mean, such as {inside[-1]}",
        )
    return other_form(folder, name)


def other_form(folder: Path, name: str) -> ModelError | None:
    """The error for a folder whose weights are in a form that is not read here; None where there are none."""
    for pattern, form in _OTHERS.items():
        if files := sorted(file.name for file in folder.glob(pattern)):
            return ModelError(f"{name} has no weights in safetensors (found: {files[0]}, {form})", _ORIGINAL)
    return None


_ORIGINAL = "use the model that it was made from, in Hugging Face format with weights in safetensors"


def _adapter(folder: Path, name: str) -> ModelError:
    base = _read(folder / ADAPTER, dict).get("base_model_name_or_path") or "BASE"
    merge = (
        "from transformers import AutoModelForMaskedLM as M; from peft import PeftModel as P;"
        f" P.from_pretrained(M.from_pretrained({str(base)!r}), {name!r}).merge_and_unload().save_pretrained('NEW')"
    )
    return ModelError(
        f"{name} is a PEFT adapter ({ADAPTER}) and no model: it holds what is added to {base}",
        f'merge it into its model with `python -c "{merge}"` (AutoModelForCausalLM for a decoder), copy the tokenizer'
        " files to NEW as well and set model.path to NEW",
    )


def _transformer_of(folder: Path) -> Path | None:
    """Where the transformer of a model of sentence-transformers lies, if in a folder of its own."""
    for module in _read(folder / MODULES, list):
        path = str(module.get("path", "")) if isinstance(module, dict) else ""
        if path and str(module.get("type", "")).endswith("Transformer") and (folder / path / "config.json").is_file():
            return folder / path
    return None


def _read(file: Path, kind: type[Any]) -> Any:
    """The content of a JSON file, empty where it is of another kind."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return kind()
    return content if isinstance(content, kind) else kind()
