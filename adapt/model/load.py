"""Loads and saves models, and refuses checkpoints that are incomplete or do not fit their config.json.

`load_model` loads a language model with its head. `load_base` loads an encoder or decoder without its head, to compute
hidden states. If a model has added modules, such as adapters, the architecture is built first, then the modules are
attached, and then the weights are read. `save_model` writes a Hugging Face folder. If the model has no added modules,
transformers alone can load it.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from adapt.model.additions.domain_modules import choose_domain
from adapt.model.additions.table import additions_of, attach_additions
from adapt.model.architecture import Way, not_a_decoder, not_an_encoder, turned_wrongly
from adapt.model.locate import listed, no_head, weight_files
from adapt.model.packing.isolation import keep_documents_apart, keep_states_apart, try_architecture
from adapt.model.safeguards import check_finite, one_at_a_time, quiet
from adapt.model.tokenizer import is_decoder, is_encoder, load_config, sees_both_sides, unloadable
from adapt.support.errors import ModelError


def load_model(
    folder: Path,
    causal: bool = False,
    trust_remote_code: bool = False,
    attention_dropout: float | None = None,
    domain: str | None = None,
) -> PreTrainedModel:
    """Loads a language model with its head, from safetensors only, and checks that it is complete.

    Args:
        folder: folder of the model.
        causal: whether the model must predict next tokens; otherwise it must predict masked tokens.
        trust_remote_code: whether to run code that comes with the checkpoint.
        attention_dropout: dropout of the attention weights; None keeps the dropout in the model's config.
        domain: the domain to use, if the model has separate parameters for domains; None uses the domain learnt last.
            See `adapt.model.additions.domain_modules`.

    Returns:
        The model in evaluation mode, on the CPU, in fp32, with the added modules in its config.json
        (`adapt.model.additions`). It keeps the documents of a packed sequence isolated from each other.

    Raises:
        ModelError: the model is a decoder and an encoder is needed, or the other way round; it cannot keep documents
            isolated; weights are unreadable, not finite, missing or of another shape (transformers would replace
            missing or wrongly shaped weights with random ones); or the model has no parameters for the domain.
    """
    config = load_config(folder, trust_remote_code, attention_dropout)
    check_direction(config, causal, folder)
    with quiet():
        model, report = read_weights(model_class(config), folder, config, trust_remote_code)
        check_complete(report["missing_keys"], report["mismatched_keys"], folder)
        keep_documents_apart(model)
    if domain is not None:
        choose_domain(model, domain)
    return model


def check_loads(
    folder: Path,
    causal: bool | None,
    trust_remote_code: bool = False,
    only_earlier: bool = False,
    in_blocks: str | None = None,
) -> Way | None:
    """Checks whether `load_model` can load a model, as far as this is possible without reading its weights.

    The arguments are those of `load_model` and of `adapt.model.packing.isolation.try_architecture`. With `causal` None,
    a decoder must predict next tokens and an encoder masked tokens.

    Returns:
        How the model accepts documents: packed, or as rows. None if this is only known when the model is loaded.

    Raises:
        ModelError: see `load_model`, and `adapt.model.packing.isolation.try_architecture`.
    """
    config = load_config(folder, trust_remote_code)
    own = is_decoder(config) and not sees_both_sides(config)
    check_direction(config, own if causal is None else causal, folder)
    if additions_of(config) or hasattr(config, "auto_map"):
        return None
    return try_architecture(config, model_class(config), only_earlier, in_blocks)


def model_class(config: PreTrainedConfig) -> Any:
    """Returns transformers' auto class for loading and building a model with this config."""
    return AutoModelForCausalLM if is_decoder(config) else AutoModelForMaskedLM


def check_direction(config: PreTrainedConfig, causal: bool, folder: Path) -> None:
    """Checks that a model is a decoder if `causal` is true, and an encoder otherwise.

    Decoders that were converted to bidirectional attention (`is_causal: false`) count as encoders.
    """
    named = (config.architectures or [config.model_type])[0]
    if sees_both_sides(config):
        if causal:
            raise turned_wrongly(folder, is_turned=True)
        return
    if getattr(config, "is_encoder_decoder", False):
        raise _two_parts(folder)
    if causal and not is_decoder(config):
        raise not_a_decoder(named, folder)
    if not causal and not is_encoder(config):
        raise not_an_encoder(named, folder, is_decoder(config))


@one_at_a_time
def read_weights(
    kind: Any, folder: Path, config: PreTrainedConfig, trust_remote_code: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Reads a model in fp32, from safetensors only, and returns it with transformers' report of faulty weights.

    The report lists weights that are missing or have another shape.

    Args:
        kind: the class of the model, or one of transformers' auto classes.
        folder: folder of the model.
        config: the model's config.
        trust_remote_code: whether to run code that comes with the checkpoint.

    Raises:
        ModelError: the weights cannot be read, or have values that are not finite.
    """
    check_weight_files(folder)
    if additions_of(config):
        model, report = read_with_additions(kind, folder, config, trust_remote_code)
    else:
        with quiet():
            try:
                model, report = kind.from_pretrained(
                    folder,
                    config=config,
                    dtype=torch.float32,
                    use_safetensors=True,
                    local_files_only=True,
                    trust_remote_code=trust_remote_code,
                    ignore_mismatched_sizes=True,  # the report lists the mismatched weights by name
                    output_loading_info=True,
                )
            except Exception as error:  # the type of error depends on the fault
                raise unloadable("model", folder, error) from error
    for name, parameter in model.named_parameters():
        check_finite(parameter, name, str(folder))
    return model, report


def check_weight_files(folder: Path) -> None:
    """Opens every weights file, so that safetensors checks its header and length. Errors name the file."""
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            continue
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error


def check_complete(
    missing: Iterable[str], mismatched: Iterable[tuple[str, torch.Size, torch.Size]], folder: Path
) -> None:
    """Checks that no weights are missing or have another shape. Tied weights do not count as missing."""
    if absent := sorted(missing):
        raise no_head(str(folder), absent)
    if wrong := sorted(f"{name} {tuple(stored)} instead of {tuple(wanted)}" for name, stored, wanted in mismatched):
        raise ModelError(
            f"{folder} has weights of another shape than its config.json says: {listed(wrong)}",
            "use the config.json that was saved with these weights",
        )


UNUSED = "pooler."
"""Part of the names of the pooler's weights. These weights may be missing, because hidden states do not use them."""
HEAD_SEED = 0
"""Seed of the random weights of new heads. It is constant, so that all runs begin with the same model."""


def load_base(folder: Path, trust_remote_code: bool = False) -> PreTrainedModel:
    """Loads a model with `read_base`, and makes it keep the documents of a packed sequence isolated from each other.

    Raises:
        ModelError: the model cannot be read, lacks weights, or cannot keep documents isolated.
    """
    model = read_base(folder, trust_remote_code)
    keep_states_apart(model)
    return model


def read_base(folder: Path, trust_remote_code: bool = False) -> PreTrainedModel:
    """Reads a model without its head, in evaluation mode, on the CPU, in fp32.

    Args:
        folder: folder of the model.
        trust_remote_code: whether to run code that comes with the checkpoint.

    Raises:
        ModelError: the model cannot be read, lacks weights, or has both an encoder and a decoder.
    """
    config = load_config(folder, trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise _two_parts(folder)
    loaded, report = read_weights(AutoModel, folder, config, trust_remote_code)
    missing = [name for name in report["missing_keys"] if UNUSED not in name]
    check_complete(missing, report["mismatched_keys"], folder)
    model: PreTrainedModel = loaded.eval()
    return model


def read_with_new_head(
    kind: Any, folder: Path, config: PreTrainedConfig, trust_remote_code: bool
) -> tuple[PreTrainedModel, set[str]]:
    """Reads a model whose files may lack the head. Returns it in evaluation mode, and the names of new weights.

    New weights are drawn with the seed `HEAD_SEED`. See `read_weights` for the arguments.

    Raises:
        ModelError: the weights cannot be read, or lack a part of a layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(HEAD_SEED)
        model, report = read_weights(kind, folder, config, trust_remote_code)
    missing = set(report["missing_keys"])
    prefix = f"{model.base_model_prefix}."
    if inside := sorted(name for name in missing if name.startswith(prefix) and UNUSED not in name):
        raise no_head(str(folder), inside)
    check_complete((), report["mismatched_keys"], folder)
    return model.eval(), missing


def _two_parts(folder: Path) -> ModelError:
    return ModelError(
        f"{folder} has an encoder and a decoder", "choose a model that is only an encoder or only a decoder"
    )


def read_with_additions(
    kind: Any, folder: Path, config: PreTrainedConfig, trust_remote_code: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Reads a model with added modules, such as adapters, and returns it with a report of faulty weights.

    The model is in fp32 and in evaluation mode. The report lists weights that are missing or have another shape.

    The arguments are those of `read_weights`, which must have checked the files. A class without a head ignores the
    head's weights.

    Raises:
        ModelError: an added module is of an unknown kind, or a weight belongs to no part of the model.
    """
    model: PreTrainedModel = kind.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    attach_additions(model, config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    files = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    stored = {name: tensor for file in files for name, tensor in load_file(file).items()}
    if model.base_model is model:  # a model without a head has names without a prefix
        prefix = f"{model.base_model_prefix}."
        stored = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    if unknown := sorted(stored.keys() - shapes.keys()):
        raise ModelError(
            f"{folder} has weights that belong neither to its architecture nor to its additions: {unknown[0]}",
            "copy or train the model again",
        )
    report = {
        "missing_keys": shapes.keys() - stored.keys() - model.all_tied_weights_keys.keys(),
        "mismatched_keys": [
            (name, tensor.shape, shapes[name]) for name, tensor in stored.items() if tensor.shape != shapes[name]
        ],
    }
    if not report["mismatched_keys"]:
        model.load_state_dict(stored, strict=False)
        model.tie_weights()
    return model.eval(), report


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
        state_dict: the weights, on any device and of any data type. Of each group of tied weights, one name is enough.
        tokenizer: the model's tokenizer.
        folder: folder to write. The caller must make this atomic.
        trust_remote_code: whether to run code that comes with the checkpoint.
        max_shard_size: maximum size of a file. Larger models are split into several files.
        resize: function that changes the config in place, if the model's size or modules differ from config.json.
        kind: class of the model; None for a language model.

    Raises:
        ModelError: the weights are not those of the model that config.json describes, or are not finite.
    """
    config = load_config(config_folder, trust_remote_code)
    resize(config)
    with quiet():
        with torch.device("meta"):  # on the meta device, because only names, shapes and ties of weights are needed
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
    for file in folder.glob("*.safetensors"):  # because safetensors makes its files readable by the owner only
        file.chmod((folder / "config.json").stat().st_mode)


def untied(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes one name of each tied pair of weights. If the two weights differ, both names remain."""
    for name, source in model.all_tied_weights_keys.items():
        if name not in weights:
            continue
        if source not in weights:
            weights[source] = weights.pop(name)
        elif torch.equal(weights[name], weights[source]):
            del weights[name]
    return weights


def check_nothing_lost(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Checks that the weights match the model. Otherwise loading would add random weights or ignore some."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    missing = sorted(shapes.keys() - weights.keys() - model.all_tied_weights_keys.keys())
    unknown = sorted(weights.keys() - shapes.keys())
    reshaped = sorted(name for name in weights if name in shapes and weights[name].shape != shapes[name])
    faults = {"missing": missing, "unknown": unknown, "of another shape": reshaped}
    faulty = "; ".join(f"{fault}: {listed(names)}" for fault, names in faults.items() if names)
    if faulty:
        raise ModelError(
            f"the weights to save do not match a {type(model).__name__} with this config.json ({faulty})",
            "pass the complete state_dict of the model, after merging modules that were added for training",
        )
