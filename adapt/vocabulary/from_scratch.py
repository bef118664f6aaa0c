"""Trains a tokenizer on a domain, and creates a model of a given architecture with random weights for it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from adapt.model.load import model_class
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.safeguards import one_at_a_time, quiet
from adapt.model.save_model import save_model
from adapt.model.size import ALIASES
from adapt.model.tokenizer import load_config, load_tokenizer
from adapt.runner.files import write_atomically
from adapt.support.errors import ModelError
from adapt.vocabulary.trimming import SPECIAL_ID

DIMENSIONS = {
    "tiny": {"layers": 2, "hidden": 128, "heads": 2, "inner": 512},
    "mini": {"layers": 4, "hidden": 256, "heads": 4, "inner": 1024},
    "small": {"layers": 4, "hidden": 512, "heads": 8, "inner": 2048},
    "medium": {"layers": 8, "hidden": 512, "heads": 8, "inner": 2048},
    "base": {"layers": 12, "hidden": 768, "heads": 12, "inner": 3072},
}
"""The sizes of the BERT models of Turc et al., arXiv 1908.08962."""


@one_at_a_time
def write_scratch(
    pretrained: Pretrained, texts: Iterable[str], size: int | None, dimensions: str | None, seed: int, folder: Path
) -> tuple[int, int]:
    """Writes a new tokenizer and model, and returns the numbers of tokens and of parameters.

    Args:
        pretrained: the model whose architecture, kind of tokenizer and special tokens are used.
        texts: the documents on which the tokenizer is trained.
        size: largest number of tokens; None for the number of tokens of `pretrained`.
        dimensions: a name in DIMENSIONS; None for the dimensions of `pretrained`.
        seed: seed of the weights.
        folder: the folder in which model and tokenizer are written.

    Raises:
        ModelError: the dimensions cannot be set, or the model cannot be saved.
    """
    old = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    with quiet():
        new: PreTrainedTokenizerFast = old.train_new_from_iterator(texts, size or len(old), show_progress=False)
    settings = _resized(read_json(pretrained.model / CONFIG), dimensions, pretrained.model)
    settings = {**settings, **_special_ids(settings, old, new), "vocab_size": len(new)}
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    config = load_config(folder, pretrained.trust_remote_code)
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config).from_config(config, dtype=torch.float32)
        save_model(folder, model.state_dict(), new, folder, pretrained.trust_remote_code)
    return len(new), int(model.num_parameters())


def _resized(settings: Mapping[str, Any], dimensions: str | None, folder: Path) -> dict[str, Any]:
    """Returns the settings of config.json with other dimensions."""
    changed = dict(settings)
    for name, value in (DIMENSIONS[dimensions] if dimensions else {}).items():
        named = [key for key in ALIASES[name] if key in settings]
        if not named:
            raise ModelError(
                f"{folder / CONFIG} does not say its {name}, so it cannot be set to {value}",
                "leave vocabulary.dimensions unset, for those of model.path",
            )
        changed |= dict.fromkeys(named, value)
    if dimensions:
        heads, hidden = DIMENSIONS[dimensions]["heads"], DIMENSIONS[dimensions]["hidden"]
        followers = {"num_key_value_heads": heads, "head_dim": hidden // heads, "embedding_size": hidden}
        changed |= {name: value for name, value in followers.items() if settings.get(name) is not None}
    return changed


def _special_ids(
    settings: Mapping[str, Any], old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast
) -> dict[str, Any]:
    """Returns the settings of config.json that are ids of special tokens, or lists of them, with their new ids."""
    names, ids = {number: token for token, number in old.get_vocab().items()}, new.get_vocab()

    def renewed(number: int) -> int | None:
        return ids.get(names[number]) if number in names else None

    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name.endswith(SPECIAL_ID) and isinstance(value, int):
            found[name] = renewed(value)
        elif name.endswith(SPECIAL_ID) and isinstance(value, list):
            found[name] = [number for each in value if (number := renewed(each)) is not None] or None
    return found
