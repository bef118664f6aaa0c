"""Gives random weights to parts of a model: a new head for an encoder without one, or new weights for top layers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM

from adapt.model.additions.table import additions_of
from adapt.model.load import UNUSED, check_direction, read_weights
from adapt.model.locate import Pretrained, has_head, listed, model_files, no_head
from adapt.model.safeguards import quiet
from adapt.model.save_model import save_model
from adapt.model.size import tensor_shapes
from adapt.model.tokenizer import is_decoder, is_encoder, load_config, load_tokenizer
from adapt.model.trainable import top_names
from adapt.support.errors import ModelError

SEED = 0
"""Seed of the head's random weights, which is fixed so that all runs begin with the same model."""


def lacks_head(folder: Path, trust_remote_code: bool = False) -> bool:
    """Whether a model is an encoder without any weight of a head for masked tokens, by the names of its weights.

    Weights that are tied to the embeddings do not count.

    Args:
        folder: folder of the model.
        trust_remote_code: whether to run code that comes with the checkpoint.
    """
    config = load_config(folder, trust_remote_code)
    if not is_encoder(config) or is_decoder(config) or additions_of(config):
        return False
    with torch.device("meta"), quiet():
        model: Any = AutoModelForMaskedLM.from_config(config, trust_remote_code=trust_remote_code)
    prefix, stored = f"{model.base_model_prefix}.", tensor_shapes(folder)
    of_head = {name for name, _ in model.named_parameters() if not name.startswith(prefix)}
    return not any(name in stored for name in of_head - model.all_tied_weights_keys.keys())


def write_with_head(start: Pretrained, folder: Path) -> int:
    """Writes a model with a new head for masked tokens, and its tokenizer.

    The head is transformers' head for the architecture, with weights drawn as for pre-training. The head's last layer
    shares the table of token embeddings.

    Args:
        start: an encoder without a head.
        folder: folder to write. The caller must make this atomic.

    Returns:
        The number of new parameters.

    Raises:
        ModelError: the model is a decoder, lacks weights of its layers, or has a head already.
    """
    config = load_config(start.model, start.trust_remote_code)
    check_direction(config, causal=False, folder=start.model)
    config.tie_word_embeddings = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model, report = read_weights(AutoModelForMaskedLM, start.model, config, start.trust_remote_code)
    missing = set(report["missing_keys"])
    if report["mismatched_keys"]:
        raise ModelError(
            f"{start.model} has weights of another shape than its config.json says",
            "use the config.json that was saved with these weights",
        )
    inside = sorted(name for name in missing if name.startswith(f"{model.base_model_prefix}.") and UNUSED not in name)
    if inside:
        raise no_head(str(start.model), inside)
    if not missing:
        raise has_head(start.model)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    named = dict(model.named_parameters())

    def tied(config: Any) -> None:
        config.tie_word_embeddings = True

    save_model(start.model, model.state_dict(), tokenizer, folder, start.trust_remote_code, resize=tied)
    return sum(named[name].numel() for name in missing if name in named)


def write_with_new_top(start: Pretrained, count: int, seed: int, folder: Path) -> int:
    """Writes a model whose top layers, and pooler if it has one, have new random weights.

    The weights are drawn as for pre-training, with the architecture's own initialization. All other tensors and files
    are copied.

    Args:
        start: a model whose layers are known (`adapt.model.architecture`).
        count: number of top layers.
        seed: seed of the random weights.
        folder: folder to write. The caller must make this atomic.

    Returns:
        The number of new parameters.

    Raises:
        ConfigError: the model has fewer layers.
        ModelError: the layers of this architecture are not known, or the checkpoint lacks some of their weights.
    """
    config = load_config(start.model, start.trust_remote_code)
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        fresh: Any = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=start.trust_remote_code)
    drawn = fresh.state_dict()
    top = top_names(dict(fresh.named_parameters()), config.model_type, count)
    prefix, written, number = f"{fresh.base_model_prefix}.", set[str](), 0
    for file in model_files(start.model):
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
            continue
        tensors = load_file(file)
        for name, tensor in tensors.items():
            inside = name.removeprefix(prefix)
            if inside in top and drawn[inside].shape == tensor.shape:
                tensors[name] = drawn[inside].to(tensor.dtype).contiguous()
                written.add(inside)
                number += tensor.numel()
        save_file(tensors, folder / file.name, {"format": "pt"})
        (folder / file.name).chmod((folder.stat().st_mode & 0o666) | 0o600)
    if missing := sorted(name for name in top - written if UNUSED not in name):
        raise ModelError(
            f"{start.model} lacks weights of its top layers, or has them in another shape: {listed(missing)}",
            "leave model.reinitialize_top out, or give a model with all weights of its layers",
        )
    return number
