"""Where a checkpoint lies on disk, and which files it consists of.

Imports neither torch nor transformers: a job that finds all its work done has to be able to say so at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.errors import ModelError
from adapt.model.demo import demo_checkpoint
from adapt.model.mistaken import ADAPTER, MODULES, mistaken_address, mistaken_file, mistaken_folder, other_form

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


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some of the names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


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
