"""Saves a model as a Hugging Face folder. If it has no added modules, transformers alone can load it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from adapt.model.additions.table import attach_additions
from adapt.model.load import model_class
from adapt.model.locate import listed
from adapt.model.safeguards import check_finite, quiet
from adapt.model.tokenizer import load_config
from adapt.support.errors import ModelError


def save_model(
    config_folder: Path,
    state_dict: Mapping[str, Tensor],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    trust_remote_code: bool = False,
    max_shard_size: str = "5GB",
    resize: Callable[[Any], None] = lambda config: None,
    kind: Any = None,
) -> None:
    """Writes config.json, model.safetensors and the tokenizer.

    Args:
        config_folder: a folder with the config.json of the model, usually the folder from which the model was loaded.
        state_dict: the weights, from any device and in any type. For tied weights, one name is enough.
        tokenizer: the model's tokenizer.
        folder: folder to write. The caller must make this atomic.
        trust_remote_code: whether to run code that comes with the checkpoint.
        max_shard_size: larger models are split into files of this size.
        resize: function that changes the config in place, if the model's size or modules differ from config.json.
        kind: class of the model; None for a language model.

    Raises:
        ModelError: the weights are not those of the model that config.json describes, or are not finite.
    """
    config = load_config(config_folder, trust_remote_code)
    resize(config)
    with quiet():
        with torch.device("meta"):  # only names, shapes and ties of the weights are needed
            if kind is None:
                model = model_class(config).from_config(
                    config, dtype=torch.float32, trust_remote_code=trust_remote_code
                )
            else:
                model = kind(config)
            attach_additions(model, config)
        plain = {name: tensor.detach().cpu() for name, tensor in state_dict.items()}
        weights = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in plain.items()}
        weights = untied(model, weights)
        check_nothing_lost(model, weights)
        for name, tensor in weights.items():
            check_finite(tensor, name, "the model to save", "lower training.learning_rate, and train again")
        model.save_pretrained(folder, state_dict=weights, max_shard_size=max_shard_size)
        tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):  # safetensors makes its files readable by the owner only
        file.chmod((folder / "config.json").stat().st_mode)


def untied(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keeps one name of each tied pair of weights. If the two have different values, both are kept."""
    for name, source in model.all_tied_weights_keys.items():
        if name not in weights:
            continue
        if source not in weights:
            weights[source] = weights.pop(name)
        elif torch.equal(weights[name], weights[source]):
            del weights[name]
    return weights


def check_nothing_lost(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Refuses weights that do not match the model. Missing ones would be random when loaded, and others lost."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    missing = sorted(shapes.keys() - weights.keys() - model.all_tied_weights_keys.keys())
    unknown = sorted(weights.keys() - shapes.keys())
    reshaped = sorted(name for name in weights if name in shapes and weights[name].shape != shapes[name])
    faults = {"missing": missing, "unknown": unknown, "of another shape": reshaped}
    faulty = "; ".join(f"{fault}: {listed(names)}" for fault, names in faults.items() if names)
    if faulty:
        raise ModelError(
            f"the weights to save are not those of a {type(model).__name__} as its config.json describes it ({faulty})",
            "pass the whole state_dict of the model, with what was added to it for training merged into its weights",
        )
