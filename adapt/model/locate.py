"""Finds a checkpoint on disk or on the Hugging Face Hub, and lists its files.

Folders, files and addresses that are not a model are refused with an error that names what they are. This module
imports neither torch nor transformers, because a job whose work is finished must start at once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.model.demo_checkpoint import demo_checkpoint
from adapt.support.errors import ModelError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER = (*VOCABULARIES, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt")

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that keep the Hugging Face libraries from the network."""


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint on disk: what Ray tasks and workers are told about the model to use."""

    model: Path
    """Folder of config and weights."""
    tokenizer: Path
    """Folder of the tokenizer; usually the same."""
    trust_remote_code: bool = False


def locate(path: str, revision: str = "main", weights: bool = True) -> Path:
    """The folder that holds a checkpoint, downloaded if need be.

    Args:
        path: `demo:bert-tiny`, a folder, or a Hugging Face id. A folder goes before an id of the same name.
        revision: branch, tag or commit of a Hugging Face id.
        weights: False for a tokenizer alone, which needs no config and no weights.

    Returns:
        An absolute path. What is in the Hugging Face cache already is taken from there without asking the network.

    Raises:
        ModelError: nothing there, nothing to be had from the network, or no weights in safetensors.
    """
    if path.startswith("demo:"):
        return demo_checkpoint(path)
    folder = Path(path).expanduser()
    if folder.exists():
        require(folder, weights)
        return folder.resolve()
    if error := mistaken_address(path):
        raise error
    if looks_local(path):
        raise ModelError(f"there is no model folder {path}", "correct model.path, or give a Hugging Face id")
    return from_hub(path, revision, weights)


def looks_local(path: str) -> bool:
    """Whether a path means a folder and cannot be a Hugging Face id, which is NAME or OWNER/NAME."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or "\\" in path or not path.strip()


def from_hub(name: str, revision: str, weights: bool) -> Path:
    """Finds a Hugging Face id: in the local cache if that is complete, else over the network."""
    try:
        return snapshot(name, revision, weights, cache_only=True)
    except Exception:  # not in the cache, or not all of it
        pass
    try:
        return snapshot(name, revision, weights, cache_only=False)
    except ModelError:
        raise
    except Exception as error:  # the client's own, the HTTP library's, and plain OSErrors and ValueErrors
        raise refusal(name, revision, error) from error


def snapshot(name: str, revision: str, weights: bool, cache_only: bool) -> Path:
    """The checked folder of a Hugging Face id, with the files that are needed and no others."""
    from huggingface_hub import snapshot_download

    model = (CONFIG, INDEX, "model*.safetensors") if weights else (CONFIG,)
    wanted = [*model, *TOKENIZER, ADAPTER, MODULES, "*.py"]  # the code is run only under model.trust_remote_code
    folder = snapshot_download(
        name, revision=revision, allow_patterns=wanted, ignore_patterns=["*/*"], local_files_only=cache_only
    )
    require(Path(folder), weights, name)
    return Path(folder)


def refusal(name: str, revision: str, error: Exception) -> ModelError:
    """Say in the user's words why a Hugging Face id could not be had."""
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "HFValidationError"):
        return ModelError(
            f"there is no model {name!r} on the Hugging Face Hub, nor a folder of that name here",
            "correct model.path; if the model is private or gated, log in with `hf auth login`",
        )
    if kind == "GatedRepoError":
        return ModelError(
            f"the model {name!r} is gated: its owner has to let you in",
            "ask for access on its page and log in with `hf auth login`, or choose another model.path",
        )
    if kind == "RevisionNotFoundError":
        return ModelError(f"the model {name!r} has no revision {revision!r}", "correct model.revision")
    if offline := next((variable for variable in OFFLINE if os.environ.get(variable, "0") not in ("", "0")), None):
        return ModelError(
            f"the model {name!r} (revision {revision!r}) is not in the local cache, and the network is not asked:"
            f" {offline} is set",
            f"unset {offline}; or run `hf download {name}` where there is a network, and copy the cache (HF_HOME) here;"
            " or set model.path to a folder or to demo:bert-tiny",
        )
    lines = str(error).strip().splitlines() or [kind]
    return ModelError(
        f"the model {name!r} (revision {revision!r}) is not in the local cache and could not be fetched: "
        f"{lines[0].removeprefix('Got: ')}",
        "connect to the Hub (or to a mirror, by HF_ENDPOINT), or set model.path to a folder or to demo:bert-tiny",
    )


def require(folder: Path, weights: bool, name: str = "") -> None:
    """Check that a folder holds what is asked of it. `name` is what the user calls it, where that is not the folder."""
    if not folder.is_dir():
        raise mistaken_file(folder)
    if weights:
        model_files(folder, name)
    elif not has_tokenizer(folder):
        raise ModelError(f"{name or folder} holds no tokenizer", "give the id or folder of one (tokenizer.json)")


def model_files(folder: Path, name: str = "") -> list[Path]:
    """Everything in a folder that determines what the model computes, sorted by name.

    Args:
        folder: a model folder.
        name: what the user calls it, for the error messages.

    Returns:
        config.json, the weights in safetensors (all shards and their index), the tokenizer's files and, where
        config.json names code of its own, that code.

    Raises:
        ModelError: config.json, the weights or one of their shards is missing.
    """
    name = name or str(folder)
    if not (folder / CONFIG).is_file():
        known = mistaken_folder(folder, name)
        raise known or ModelError(f"{name} has no config.json", "give a folder in Hugging Face format")
    code = _code(folder, folder / CONFIG)
    return sorted({folder / CONFIG, *weight_files(folder, name), *tokenizer_files(folder), *code})


def weight_files(folder: Path, name: str = "") -> list[Path]:
    """The weights in safetensors: one file, or an index and its shards. Read as transformers chooses them."""
    name = name or str(folder)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise mistaken_folder(folder, name) or no_safetensors(folder, name)
    shards = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing or not shards:
        raise ModelError(f"{name} lacks weights that its index names: {', '.join(missing)}", "copy it again")
    return [folder / INDEX, *(folder / shard for shard in shards)]


def no_safetensors(folder: Path, name: str) -> ModelError:
    """The error for weights that are absent or stored as pickle, which can run code when read."""
    pickles = sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    if named := sorted(file.name for file in folder.glob("*.safetensors")):
        return ModelError(
            f"{name} has weights in {listed(named)}, but transformers reads {WEIGHTS}",
            f"if these are the model's own weights, call the file {WEIGHTS}; else download the model again",
        )
    if not pickles and (other := other_form(folder, name)):
        return other
    others = f"only {', '.join(pickles)}, a pickle, which is not read because it can run code" if pickles else "none"
    convert = f"from transformers import AutoModelForMaskedLM as M; M.from_pretrained({name!r}).save_pretrained('NEW')"
    return ModelError(
        f"{name} has no weights in safetensors (found: {others})",
        f'if you trust their author, convert them with `python -c "{convert}"`, copy the tokenizer files to NEW '
        "as well and set model.path to NEW",
    )


def no_head(name: str, absent: Sequence[str]) -> ModelError:
    """The error for a model without (all of) the head that predicts tokens.

    Args:
        name: of the model.
        absent: names of weights that are not there.
    """
    return ModelError(
        f"{name} lacks weights of its language model: {listed(absent)}",
        "use a checkpoint that was saved with its language-model head (not a bare encoder or a classifier)",
    )


def listed(names: Sequence[str]) -> str:
    """Five of the names, and how many more there are."""
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a folder's tokenizer, with its code if it has its own, sorted by name; empty where it has none."""
    code = _code(folder, folder / TOKENIZER_CONFIG)
    return sorted({*code, *(file for pattern in TOKENIZER for file in folder.glob(pattern))})


def _code(folder: Path, config: Path) -> list[Path]:
    """The code in a folder, where a config names some."""
    return list(folder.glob("*.py")) if config.is_file() and "auto_map" in read_json(config) else []


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a vocabulary, and not just settings for one."""
    return any(any(folder.glob(pattern)) for pattern in VOCABULARIES)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} does not hold a JSON object", "copy or download the model again")
    return content


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
