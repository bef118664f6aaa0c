"""Writes model folders with chosen weights, merges them, and reads the result."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from adapt.merge.compatibility import NewTokens
from adapt.merge.merger import Merging
from adapt.merge.streamed_merge import merge_models, stored_weights


def folder_of(path: Path, *shards: Mapping[str, Tensor], like: Path | None = None) -> Path:
    """Writes a model folder with the given weights and returns its path.

    Args:
        path: the new folder.
        shards: the weights by name, one mapping per weight file.
        like: folder from which all other files are copied.
    """
    path.mkdir()
    if like:
        for file in like.iterdir():
            if "safetensors" not in file.name:
                shutil.copy(file, path)
    if len(shards) == 1:
        save_file(dict(shards[0]), path / "model.safetensors", metadata={"format": "pt"})
        return path
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(dict(shard), path / name, metadata={"format": "pt"})
    places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def weights_in(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def moved(weights: Mapping[str, Tensor], seed: int, size: float = 0.1) -> dict[str, Tensor]:
    """Returns a copy of the weights with random noise added to the floating-point tensors."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (one.float() + size * torch.randn(one.shape, generator=generator)).to(one.dtype)
        if one.is_floating_point()
        else one
        for name, one in weights.items()
    }


def merged_in(
    folder: Path,
    base: Path,
    *models: Path,
    kind: str = "interpolate",
    share: float = 0.5,
    tokens: NewTokens | None = None,
) -> Path:
    """Merges models into a folder, each model with merge weight 1, and returns the folder."""
    weights = (1.0,) * len(models)
    merging = Merging(kind, (share,), weights, 0.5 if kind in ("ties", "dare") else None, 0)
    folder.mkdir()
    from contextlib import ExitStack

    with ExitStack() as stack:
        opened = [(model, stack.enter_context(stored_weights(model))) for model in models]
        merge_models(merging, base, opened, {share: folder}, tokens=tokens)
    return folder


def extended(folder: Path, like: Path, words: Sequence[str], seed: int = 0, filling: int = 0) -> Path:
    """Writes a copy of a BERT model with noise on its weights, and with new tokens that have random rows.

    Args:
        folder: folder of the new model.
        like: folder of the model to copy.
        words: the new tokens, in the order of their ids.
        seed: seed of the noise and of the new rows.
        filling: number of padding rows after the rows of tokens.
    """
    weights = moved(weights_in(like), seed)
    rows = len(words) + filling
    generator = torch.Generator().manual_seed(seed)
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        old = weights[name]
        weights[name] = torch.cat([old, torch.randn((rows, *old.shape[1:]), generator=generator)])
    folder_of(folder, weights, like=like)
    for file, change in (("config.json", _more_rows), ("tokenizer.json", _more_words)):
        content = json.loads((folder / file).read_text())
        change(content, rows, words)
        (folder / file).write_text(json.dumps(content))
    return folder


def _more_rows(config: dict[str, Any], rows: int, words: Sequence[str]) -> None:
    config["vocab_size"] += rows


def _more_words(tokenizer: dict[str, Any], rows: int, words: Sequence[str]) -> None:
    known = tokenizer["model"]["vocab"]
    known |= {word: number for number, word in enumerate(words, max(known.values()) + 1)}
