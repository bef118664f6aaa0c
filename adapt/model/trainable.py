"""Decides by name which parameters are trained and with which learning rates. This module does not load torch.

`training.freeze` freezes parameters. `training.embedding_rate` and `training.layer_decay` scale the learning
rate. Before a model is loaded, the names are read from the headers of its weights.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from adapt.config import TrainingConfig
from adapt.model.architecture import layer_list
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import IN_LAYER, TABLE, ModelSize, tensor_shapes
from adapt.support.errors import ConfigError, nearest

EMBEDDINGS = "embeddings"
_POOLER = re.compile(r"(^|\.)pooler\.")
_LAYERS = re.compile(r"layers:(\d+)")
_WILD = re.compile(r"[*?\[]")
_BASE = "base"
"""Prefix for names without the prefix of the base model, where a pattern does not show what the prefix is."""


def frozen_names(names: Iterable[str], kind: str, freeze: Iterable[str]) -> set[str]:
    """Returns the names of the parameters that `training.freeze` leaves untrained, in a model with `model_type` `kind`.

    Raises:
        ConfigError: an entry matches no parameter or names more layers than there are, or all parameters are frozen.
        ModelError: `layers:N` is used, and the model's layers cannot be found.
    """
    names, freeze = list(names), list(freeze)
    is_bare = _is_bare(names)  # a loaded model has the prefix, which patterns may name
    frozen: set[str] = set()
    for entry in freeze:
        if asked := _LAYERS.fullmatch(entry):
            frozen |= _lowest_layers(names, kind, int(asked[1]))
            continue
        first = entry.split(".")[0]
        prefix = (_BASE if _WILD.search(first) else first) + "." if is_bare else ""
        found = {name for name in names if _fits(prefix + name, entry)}
        if not found:
            raise _fits_nothing(entry, [f"*.{name}" for name in names] if is_bare else names)
        frozen |= found
    if freeze and frozen >= set(names):
        raise ConfigError("training.freeze leaves no parameter to train", "freeze fewer parameters")
    return frozen


def rate_factors(names: Iterable[str], kind: str, training: TrainingConfig) -> dict[str, float]:
    """Returns the factor of the learning rate of each parameter, in a model with `model_type` `kind`.

    Layer l of L, counted from 0, has the factor layer_decay^(L - 1 - l), and tables of embeddings have the factor
    embedding_rate times layer_decay^L. All other parameters, such as the language-model head, have the factor 1.

    Raises:
        ModelError: `training.layer_decay` is used, and the model's layers cannot be found.
    """
    names, decay = list(names), training.layer_decay
    numbers = _layer_numbers(names, kind) if decay != 1 else {}
    layers = _count(numbers)

    def factor(name: str) -> float:
        if is_embedding(name):
            return training.embedding_rate * decay**layers
        return decay ** (layers - 1 - numbers[name]) if name in numbers else 1.0

    return {name: factor(name) for name in names}


def is_embedding(name: str) -> bool:
    """Whether a parameter is a table of embeddings: of tokens, positions or token types."""
    return bool(TABLE.search(name)) and not IN_LAYER.search(name)


def check_trained(training: TrainingConfig, folder: Path) -> None:
    """Checks `training.freeze`, `training.layer_decay` and `training.embedding_rate` against the names of weights.

    The names are read from the headers of the weights.

    Raises:
        ConfigError: an entry of training.freeze matches no parameter, all parameters are frozen, or
            training.embedding_rate applies to no parameter.
        ModelError: the model's layers cannot be found.
    """
    kind = str(read_json(folder / CONFIG).get("model_type"))
    if training.freeze:
        frozen_names(tensor_shapes(folder), kind, training.freeze)
    if training.layer_decay != 1:
        layer_list(tensor_shapes(folder), kind)
    if training.embedding_rate != 1 and not any(map(is_embedding, tensor_shapes(folder))):
        raise ConfigError(
            f"training.embedding_rate is {training.embedding_rate:g}, but no weight of the {kind} model has a known"
            " name of a table of embeddings",
            "leave training.embedding_rate out",
        )


def frozen_summary(training: TrainingConfig, folder: Path) -> str:
    """Returns a message that says how many tensors `training.freeze` freezes. Empty if it freezes no tensor."""
    if not training.freeze:
        return ""
    shapes = tensor_shapes(folder)
    frozen = frozen_names(shapes, str(read_json(folder / CONFIG).get("model_type")), training.freeze)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    share = sum(sizes[name] for name in frozen) / sum(sizes.values())
    return (
        f"{len(frozen)} of {len(sizes)} tensors are frozen, {share:.0%} of the parameters"
        f" (training.freeze: {', '.join(training.freeze)})"
    )


def trained_share(training: TrainingConfig, size: ModelSize) -> float:
    """Returns the share of a model's parameters that are still trained with `training.freeze`, from 0 to 1."""
    sizes = dict(size.tensors)
    if not training.freeze or not sizes:
        return 1.0
    frozen = frozen_names(sizes, size.kind, training.freeze)
    return 1 - sum(sizes[name] for name in frozen) / sum(sizes.values())


def _fits(name: str, entry: str) -> bool:
    return is_embedding(name) if entry == EMBEDDINGS else fnmatchcase(name, entry)


def _is_bare(names: Sequence[str]) -> bool:
    """Whether names lack the prefix of the base model, such as `bert.`: layers and embeddings share no first part."""
    layers = {name.split(".")[0] for name in names if IN_LAYER.search(name)}
    tables = {name.split(".")[0] for name in names if is_embedding(name)}
    return bool(layers and tables) and not layers & tables


def _lowest_layers(names: list[str], kind: str, count: int) -> set[str]:
    numbers = _layer_numbers(names, kind)
    if count > (layers := _count(numbers)):
        raise ConfigError(
            f"training.freeze has layers:{count}, but the model has {layers} layers", f"use layers:{layers} at most"
        )
    return {name for name, number in numbers.items() if number < count}


def top_names(names: Iterable[str], kind: str, count: int) -> set[str]:
    """Returns the names of the parameters in the top layers of a model with `model_type` `kind`, and in its pooler.

    Raises:
        ConfigError: the model has fewer than `count` layers.
        ModelError: the model's layers cannot be found.
    """
    names = list(names)
    numbers = _layer_numbers(names, kind)
    layers = _count(numbers)
    if count > layers:
        raise ConfigError(
            f"model.reinitialize_top is {count}, but the model has {layers} layers", f"use {layers} at most"
        )
    above = {name for name, number in numbers.items() if number >= layers - count}
    return above | {name for name in names if _POOLER.search(name)}


def _layer_numbers(names: list[str], kind: str) -> dict[str, int]:
    """Returns the index of the layer of each parameter, by name. Parameters outside of the layers have no entry."""
    in_layer = re.compile(rf"(?:^|\.){re.escape(layer_list(names, kind))}\.(\d+)\.")
    return {name: int(found[1]) for name in names if (found := in_layer.search(name))}


def _count(numbers: Mapping[str, int]) -> int:
    return 1 + max(numbers.values(), default=-1)


def _fits_nothing(entry: str, names: list[str]) -> ConfigError:
    forms = "use embeddings, layers:N, or a pattern of parameter names such as *.attention.*"
    return ConfigError(
        f"training.freeze has {entry!r}, which matches no parameter of the model", nearest(entry, names, forms)
    )
