"""Writes models with a new head or new weights for top layers, and converts decoders to encoders.

A converted decoder attends to both sides of a token and has a mask token (LLM2Vec, arXiv 2404.05961).
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedConfig

from adapt.model import load, safeguards, size, trainable
from adapt.model.additions.table import additions_of
from adapt.model.locate import Pretrained, has_head, listed, model_files
from adapt.model.packing.isolation import depends_on_later
from adapt.model.tokenizer import is_decoder, is_encoder, load_config, load_tokenizer
from adapt.support.errors import ModelError


def missing_head(folder: Path, trust_remote_code: bool = False) -> list[str]:
    """Returns the names of a head's weights if a model is an encoder that has none of them, else an empty list.

    The head is the head for masked tokens. Its weights that are tied to the embeddings do not count.
    """
    config = load_config(folder, trust_remote_code)
    if not is_encoder(config) or is_decoder(config) or additions_of(config):
        return []
    return _absent_head(config, folder, trust_remote_code)


def is_headless(folder: Path, trust_remote_code: bool = False) -> bool:
    """Returns whether a model is an encoder or decoder without any weights of its head, such as an embedding model."""
    config = load_config(folder, trust_remote_code)
    return (is_encoder(config) or is_decoder(config)) and bool(_absent_head(config, folder, trust_remote_code))


def _absent_head(config: PreTrainedConfig, folder: Path, trust_remote_code: bool) -> list[str]:
    """Returns the names of the head's weights if the model's folder has none of them, else an empty list."""
    with torch.device("meta"), safeguards.quiet():
        model: Any = load.model_class(config).from_config(config, trust_remote_code=trust_remote_code)
    prefix, stored = f"{model.base_model_prefix}.", size.tensor_shapes(folder)
    of_head = {name for name, _ in model.named_parameters() if not name.startswith(prefix)}
    own = sorted(of_head - model.all_tied_weights_keys.keys())
    return [] if any(name in stored for name in own) else own


def write_with_head(start: Pretrained, folder: Path) -> int:
    """Writes a model with a new head for masked tokens, and its tokenizer. The caller must make this atomic.

    The head is transformers' head for the architecture, with weights drawn as for pre-training. The head's last layer
    shares the table of token embeddings.

    Returns:
        The number of new parameters.

    Raises:
        ModelError: the model is a decoder, lacks weights of its layers, or has a head already.
    """
    config = load_config(start.model, start.trust_remote_code)
    load.check_direction(config, causal=False, folder=start.model)
    config.tie_word_embeddings = True
    model, missing = load.read_with_new_head(AutoModelForMaskedLM, start.model, config, start.trust_remote_code)
    if not missing:
        raise has_head(start.model)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    named = dict(model.named_parameters())

    def tied(config: Any) -> None:
        config.tie_word_embeddings = True

    load.save_model(start.model, model.state_dict(), tokenizer, folder, start.trust_remote_code, resize=tied)
    return sum(named[name].numel() for name in missing if name in named)


def write_with_new_top(start: Pretrained, count: int, seed: int, folder: Path) -> int:
    """Writes a model whose top layers, and pooler if it has one, have new random weights.

    The weights are drawn as for pre-training, with the architecture's own initialization. All other tensors and files
    are copied.

    Args:
        start: a model whose layers can be found (`adapt.model.architecture.layer_list`).
        count: number of top layers.
        seed: seed of the random weights.
        folder: folder to write. The caller must make this atomic.

    Returns:
        The number of new parameters.

    Raises:
        ConfigError: the model has fewer than `count` layers.
        ModelError: the model's layers cannot be found, or the checkpoint lacks weights of these layers.
    """
    config = load_config(start.model, start.trust_remote_code)
    with torch.random.fork_rng(devices=[]), safeguards.quiet():
        torch.manual_seed(seed)
        fresh: Any = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=start.trust_remote_code)
    drawn = fresh.state_dict()
    top = trainable.top_names(dict(fresh.named_parameters()), config.model_type, count)
    prefix, written, number = f"{fresh.base_model_prefix}.", set[str](), 0
    for file in model_files(start.model):
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
            continue
        tensors = load_file(file)
        for name, tensor in tensors.items():
            inside = size.current_name(name).removeprefix(prefix)
            if inside in top and drawn[inside].shape == tensor.shape:
                tensors[name] = drawn[inside].to(tensor.dtype).contiguous()
                written.add(inside)
                number += tensor.numel()
        save_file(tensors, folder / file.name, {"format": "pt"})
        (folder / file.name).chmod((folder.stat().st_mode & 0o666) | 0o600)
    if missing := sorted(name for name in top - written if load.UNUSED not in name):
        raise ModelError(
            f"{start.model} lacks weights of its top layers, or has them in another shape: {listed(missing)}",
            "leave model.reinitialize_top out, or give a model with all weights of its layers",
        )
    return number


MASK = "<mask>"
"""Mask token that is added to the tokenizer of a decoder without one."""


def write_turned(start: Pretrained, folder: Path) -> tuple[str, bool]:
    """Converts a decoder to bidirectional attention, and writes the model and a tokenizer with a mask token.

    The caller must make this atomic.

    The weights stay the same. A tokenizer without a mask token gets `<mask>`. The new row in each table of input or
    output embeddings is the mean of all tokens' rows. LLM2Vec (arXiv 2404.05961) uses an ordinary token such as `_`
    instead, which would change the tokens of texts that contain it.

    Returns:
        The mask token, and whether it was added.

    Raises:
        ModelError: the model is not a decoder, or its attention ignores `is_causal` in the config.
    """
    config = load_config(start.model, start.trust_remote_code)
    load.check_direction(config, causal=True, folder=start.model)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    config.is_causal = False
    model: Any
    model, report = load.read_weights(load.model_class(config), start.model, config, start.trust_remote_code)
    load.check_complete(report["missing_keys"], report["mismatched_keys"], start.model)
    _check_turns(model.eval(), start.model)
    is_added = tokenizer.mask_token is None
    if is_added:
        tokenizer.add_special_tokens({"mask_token": MASK})
        rows, number = int(config.vocab_size), int(tokenizer.mask_token_id)
        used = len(tokenizer) - 1
        if number >= rows:
            model.resize_token_embeddings(number + 1, mean_resizing=False)
        with torch.no_grad():
            for table in (model.get_input_embeddings(), model.get_output_embeddings()):
                table.weight[number] = table.weight[:used].mean(0)  # if tables are tied, sets the same row twice
    rows = int(model.get_input_embeddings().weight.shape[0])

    def turned(config: Any) -> None:
        config.is_causal = False
        config.vocab_size = rows

    load.save_model(start.model, model.state_dict(), tokenizer, folder, start.trust_remote_code, resize=turned)
    return str(tokenizer.mask_token), is_added


def _check_turns(model: Any, folder: Path) -> None:
    """Checks that a bidirectional decoder sees later tokens."""
    middle = int(model.config.vocab_size) // 2
    if not depends_on_later(
        lambda text: model(input_ids=text[None]).logits[0], torch.tensor([middle, middle + 1]), tolerance=1e-6
    ):
        raise ModelError(
            f"the attention of {type(model).__name__} in {folder} cannot be made bidirectional: it ignores"
            " is_causal in its config.json",
            "choose a decoder like GPT-2, Llama, Mistral or Qwen, or leave model.attention out",
        )
