"""Finds a checkpoint on disk or on the Hugging Face Hub, and lists its files.

If a folder, file or web address is not a model, the error says what it is instead. This module imports neither torch
nor transformers, so that a job whose stages are all finished ends quickly.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.model.demo_checkpoint import demo_checkpoint
from adapt.support.errors import ModelError
from adapt.support.paths import user_path

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER = (*VOCABULARIES, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Files and folders with chat templates in a tokenizer's folder. tokenizer_config.json may also have one."""
GENERATION = "generation_config.json"
"""File name of the settings with which a model generates text."""
CARD = "README.md"
"""File name of a model card. The card's metadata names the languages of the model."""
GENERATOR = "generator"
"""Name of the subfolder with the generator that was trained together with a model (objective.kind rtd)."""

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Environment variables by which users keep the Hugging Face libraries from using the network."""


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint on disk. Objects of this class are passed to Ray tasks and workers."""

    model: Path
    """Folder with config.json and weights."""
    tokenizer: Path
    """Folder of the tokenizer, which is usually the model's folder."""
    trust_remote_code: bool = False
    generator: Path | None = None
    """Folder of the generator of replaced-token detection. None for other objectives, and if the generator copies the
    first layers of `model`."""

    def files_outside(self) -> list[Path]:
        """Returns the folders that every node of a cluster needs (`adapt.runner.stage.paths_outside`)."""
        return [folder for folder in (self.model, self.tokenizer, self.generator) if folder is not None]

    def at(self, model: Path) -> "Pretrained":
        """Returns this checkpoint with the model in another folder, and with that folder's generator if it has one."""
        own = model / GENERATOR
        return replace(self, model=model, generator=own if own.is_dir() else self.generator)


def locate(path: str, revision: str = "main", weights: bool = True) -> Path:
    """Returns the folder of a checkpoint, after downloading the checkpoint if necessary.

    Args:
        path: `demo:bert-tiny`, a folder, or a Hugging Face id. A folder takes precedence over an id of the same name.
        revision: branch, tag or commit of a Hugging Face id.
        weights: whether a complete model is needed. If False, the folder of a tokenizer is enough, without config.json.

    Returns:
        The folder, an absolute path. If the Hugging Face cache has the checkpoint, the network is not used.

    Raises:
        ModelError: the checkpoint does not exist, cannot be downloaded, or has no weights in safetensors.
    """
    if path.startswith("demo:"):
        return demo_checkpoint(path)
    folder = user_path(path)
    if folder.exists():
        folder = transformer_of(folder) or folder
        require(folder, weights)
        return folder.resolve()
    if error := mistaken_address(path):
        raise error
    if looks_local(path):
        raise ModelError(f"there is no model folder {path}", "correct model.path, or give a Hugging Face id")
    return from_hub(path, revision, weights)


def looks_local(path: str) -> bool:
    """Whether a path can only be a folder, because Hugging Face ids have the form NAME or OWNER/NAME."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or "\\" in path or not path.strip()


def from_hub(name: str, revision: str, weights: bool) -> Path:
    """Returns the folder of a Hugging Face id. Uses the network only if the local cache is not complete."""
    with suppress(Exception):  # not all files of the checkpoint are in the cache
        return snapshot(name, revision, weights, cache_only=True)
    try:
        return snapshot(name, revision, weights, cache_only=False)
    except ModelError:
        raise
    except Exception as error:  # such as errors of huggingface_hub or HTTP, OSError, ValueError
        raise refusal(name, revision, error) from error


def snapshot(name: str, revision: str, weights: bool, cache_only: bool) -> Path:
    """Downloads only the needed files of a Hugging Face id. Checks that they are complete and returns their folder."""
    from huggingface_hub import snapshot_download

    model = (CONFIG, INDEX, "model*.safetensors", GENERATION) if weights else (CONFIG,)
    # transformers only runs a model's Python files with model.trust_remote_code
    files = [*TOKENIZER, *TEMPLATES, ADAPTER, MODULES, SENTENCE_SETTINGS, SENTENCE_LENGTHS, CARD, "*.py"]
    patterns = [*model, *files]
    options: dict[str, Any] = {"revision": revision, "local_files_only": cache_only}
    if not cache_only:  # before the other files, so that an interrupted download does not look complete
        generator = [f"{GENERATOR}/{pattern}" for pattern in patterns] if weights else []
        snapshot_download(name, allow_patterns=[*generator, f"{TEMPLATES[-1]}/*"], **options)
    folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"], **options))
    has_pooling = (folder / MODULES).is_file()
    if inner := transformer_place(folder):
        snapshot_download(name, allow_patterns=[f"{inner}/{pattern}" for pattern in patterns], **options)
        folder /= inner
    if has_pooling:
        snapshot_download(name, allow_patterns=[f"*_Pooling/{CONFIG}"], **options)
    require(folder, weights, name)
    return folder


def refusal(name: str, revision: str, error: Exception) -> ModelError:
    """Returns an error with the reason why a Hugging Face id could not be downloaded, and with a fix."""
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "HFValidationError"):
        return ModelError(
            f"there is no model {name!r} on the Hugging Face Hub, nor a folder of that name here",
            "correct model.path; if the model is private or gated, log in with `hf auth login`",
        )
    if kind == "GatedRepoError":
        return ModelError(
            f"the model {name!r} is gated: its owner must grant you access",
            "request access on its page and log in with `hf auth login`, or choose another model.path",
        )
    if kind == "RevisionNotFoundError":
        return ModelError(f"the model {name!r} has no revision {revision!r}", "correct model.revision")
    if offline := next((variable for variable in OFFLINE if os.environ.get(variable, "0") not in ("", "0")), None):
        return ModelError(
            f"the model {name!r} (revision {revision!r}) is not in the local cache, and is not downloaded because"
            f" {offline} is set",
            f"unset {offline}; or run `hf download {name}` where there is a network, and copy the cache (HF_HOME) here;"
            " or set model.path to a folder or to demo:bert-tiny",
        )
    lines = str(error).strip().splitlines() or [kind]
    return ModelError(
        f"the model {name!r} (revision {revision!r}) is not in the local cache and could not be fetched: "
        f"{lines[0].removeprefix('Got: ')}",
        "connect to the Hub (or set HF_ENDPOINT to a mirror), or set model.path to a folder or to demo:bert-tiny",
    )


def require(folder: Path, weights: bool, name: str = "") -> None:
    """Checks that a folder has a complete model, or at least a tokenizer if `weights` is False.

    Args:
        folder: the folder to check.
        weights: whether a model is needed. Otherwise a tokenizer is enough.
        name: the user's name for the folder, for error messages; the folder's path by default.
    """
    if not folder.is_dir():
        raise ModelError(
            f"{folder} is a file, not the folder of a model", "give the folder that holds the model's config.json"
        )
    if weights:
        model_files(folder, name)
    elif not has_tokenizer(folder):
        raise ModelError(
            f"{name or folder} holds no tokenizer", "give the id or folder of a tokenizer (with a tokenizer.json)"
        )


def model_files(folder: Path, name: str = "") -> list[Path]:
    """Lists all files in a folder that determine the model's outputs, sorted by name.

    Args:
        folder: a model folder.
        name: the user's name for the folder, for error messages; the folder's path by default.

    Returns:
        config.json, the weights in safetensors (all shards and their index), the tokenizer's files and, if config.json
        refers to Python code in the folder, this code.

    Raises:
        ModelError: config.json, the weights or one of their shards is missing.
    """
    name = name or str(folder)
    if not (folder / CONFIG).is_file():
        raise mistaken_folder(folder, name)
    code = _code(folder, folder / CONFIG)
    return sorted({folder / CONFIG, *weight_files(folder, name), *tokenizer_files(folder), *code})


def weight_files(folder: Path, name: str = "") -> list[Path]:
    """Lists the weights in safetensors: a single file, or else an index and its shards, as transformers does."""
    name = name or str(folder)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise mistaken_folder(folder, name)
    shards = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    if not shards:
        raise ModelError(f"{name}: {INDEX} names no weight files", "copy or download the model again")
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise ModelError(
            f"{name} lacks weight files that {INDEX} names: {', '.join(missing)}", "copy or download the model again"
        )
    return [folder / INDEX, *(folder / shard for shard in shards)]


def no_head(name: str, absent: Sequence[str]) -> ModelError:
    """Returns the error for a model that lacks the weights `absent` of its language-model head."""
    return ModelError(
        f"{name} lacks weights of its language model: {listed(absent)}",
        "use a checkpoint that was saved with its language-model head; for an encoder that was published without one,"
        " such as an embedding model, set model.head to new",
    )


def has_head(folder: Path) -> ModelError:
    """Returns the error for a request to add a head to a model that already has one."""
    return ModelError(f"model.head is new, but {folder} has a masked-language-model head", "leave model.head out")


def listed(names: Sequence[str]) -> str:
    """Formats a list of names for messages: the first five names, and the number of further names."""
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")


def tokenizer_files(folder: Path) -> list[Path]:
    """Lists the files of a folder's tokenizer, including Python code of the tokenizer, sorted by name."""
    code = _code(folder, folder / TOKENIZER_CONFIG)
    return sorted({*code, *(file for pattern in TOKENIZER for file in folder.glob(pattern))})


def _code(folder: Path, config: Path) -> list[Path]:
    """Lists the Python files in a folder, if a config refers to code."""
    return list(folder.glob("*.py")) if config.is_file() and "auto_map" in read_json(config) else []


def has_tokenizer(folder: Path) -> bool:
    """Returns whether a folder has a tokenizer's vocabulary. A file with a tokenizer's settings is not enough."""
    return any(any(folder.glob(pattern)) for pattern in VOCABULARIES)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON file that must contain an object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} does not hold a JSON object", "copy or download the model again")
    return content


ADAPTER, MODULES = "adapter_config.json", "modules.json"
"""Files that identify a folder as PEFT adapters (the first) and as a sentence-transformers model (the second)."""
SENTENCE_SETTINGS, SENTENCE_LENGTHS = "config_sentence_transformers.json", "sentence_bert_config.json"
"""Files in which sentence-transformers stores prompts (the first) and the maximum length of texts (the second)."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack")
"""Suffixes of files with weights, for the error about a folder without weights in safetensors."""
_IN_HUB = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)(?:/(?:tree|blob|resolve)/([^/?#]+))?"
)


def mistaken_address(path: str) -> ModelError | None:
    """Returns the error for a path that is the address of a web page; None for any other path."""
    if found := _IN_HUB.match(path):
        revision = f" and model.revision to {found[2]}" if found[2] and found[2] != "main" else ""
        return ModelError(f"model.path is {path}, the address of a web page", f"set model.path to {found[1]}{revision}")
    if re.match(r"\w+://", path):
        return ModelError(
            f"model.path is {path}, but models are read from folders, and from the Hugging Face Hub by id",
            "download the model into a folder, and set model.path to that folder",
        )
    return None


def mistaken_folder(folder: Path, name: str) -> ModelError:
    """Returns the error for a folder without config.json or safetensors. `name` is the user's name for it."""
    if not any(folder.iterdir()):
        return ModelError(f"{name} is an empty folder", "correct model.path, or copy the model there again")
    if (folder / ADAPTER).is_file():
        return _adapter(folder, name)
    weights = sorted(file.name for file in folder.iterdir() if file.suffix in _WEIGHTS)
    if not (folder / CONFIG).is_file():
        if inside := sorted(
            str(file.parent) for form in ("*", "snapshots/*") for file in folder.glob(f"{form}/{CONFIG}")
        ):
            return ModelError(
                f"{name} has no config.json, but it contains model folders: {listed(inside)}",
                f"set model.path to one of these folders, such as {inside[-1]}",
            )
        found = f" (found: {listed(weights)})" if weights else ""
        return ModelError(f"{name} has no config.json{found}", "give a folder in Hugging Face format")
    if pickles := [file for file in weights if file.startswith("pytorch_model")]:
        convert = (
            f"from transformers import AutoModelForMaskedLM as M; M.from_pretrained({name!r}).save_pretrained('NEW')"
        )
        return ModelError(
            f"{name} has no weights in safetensors (found: only {listed(pickles)}, a pickle, which is not read because"
            " it can run code)",
            f'if you trust the author of the weights, convert them with `python -c "{convert}"`, copy the tokenizer'
            " files to NEW as well and set model.path to NEW",
        )
    return ModelError(
        f"{name} has no {WEIGHTS} (found: {listed(weights) or 'no weights'})",
        f"use the original model, in Hugging Face format with its weights in {WEIGHTS}",
    )


def _adapter(folder: Path, name: str) -> ModelError:
    base = _read(folder / ADAPTER, dict).get("base_model_name_or_path") or "BASE"
    merge = (
        "from transformers import AutoModelForMaskedLM as M; from peft import PeftModel as P;"
        f" P.from_pretrained(M.from_pretrained({str(base)!r}), {name!r}).merge_and_unload().save_pretrained('NEW')"
    )
    return ModelError(
        f"{name} is a PEFT adapter ({ADAPTER}), not a model: its weights are added to those of {base}",
        f'merge the adapter into its model with `python -c "{merge}"` (AutoModelForCausalLM for a decoder), copy the'
        " tokenizer files to NEW as well and set model.path to NEW",
    )


def transformer_of(folder: Path) -> Path | None:
    """Returns the subfolder with the transformer of a sentence-transformers model; None if there is no subfolder."""
    place = transformer_place(folder)
    return folder / place if place and (folder / place / CONFIG).is_file() else None


def transformer_place(folder: Path) -> str:
    """Returns the name of the transformer's subfolder from modules.json; empty if there is no such subfolder."""
    for module in read_list(folder / MODULES):
        path = str(module.get("path", "")) if isinstance(module, dict) else ""
        is_safe = "/" not in path and path not in (".", "..")
        if path and is_safe and str(module.get("type", "")).endswith("Transformer"):
            return path
    return ""


def read_list(file: Path) -> list[Any]:
    """Reads a JSON list. Returns an empty list if the file does not exist, cannot be read, or is not a list."""
    return list(_read(file, list)) if file.is_file() else []


def _read(file: Path, kind: type[Any]) -> Any:
    """Reads a JSON file. Returns an empty value of type `kind` if the file cannot be read or has another type."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return kind()
    return content if isinstance(content, kind) else kind()
