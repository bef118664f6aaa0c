"""What is done to a model before it trains, besides its objective: dropout, gradient checkpointing, torch.compile.

On CPUs the C library keeps freed memory: otherwise they spend 7 to 20% of a training step on fresh pages.
"""

import ctypes

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from adapt.config import TrainingConfig
from adapt.model.packing.dropout import use_quick_dropout
from adapt.model.trainable import frozen_names
from adapt.support.errors import ModelError
from adapt.train.capacity.device import check_compiler


def apply_options(model: PreTrainedModel, training: TrainingConfig, device: torch.device) -> None:
    """Makes a model fast on its device, and its layers checkpointed or compiled as the configuration asks. In place.

    Args:
        model: before an engine wraps it.
        training: settings.
        device: where it will train.

    Raises:
        ConfigError: there is no compiler.
        ModelError: the model cannot do it.
    """
    if device.type == "cpu":
        keep_freed_memory()
        use_quick_dropout(model)
    if training.gradient_checkpointing:
        checkpoint(model)
    if training.compile:
        check_compiler(device.type == "cuda")
        for layer in layers(model, "training.compile"):
            layer.compile()


def freeze(model: PreTrainedModel, training: TrainingConfig) -> None:
    """Takes the parameters that `training.freeze` names out of training. In place.

    Args:
        model: before an engine wraps it, with what its method added.
        training: settings.

    Raises:
        ConfigError: an entry fits no parameter, or nothing is left to train.
    """
    if not training.freeze:
        return
    named = dict(model.named_parameters())
    for name in frozen_names(named, model.config.model_type, training.freeze):
        named[name].requires_grad_(False)


def checkpoint(model: PreTrainedModel) -> None:
    """Keeps each layer's input only and runs it again in the backward pass (Chen et al., arXiv 1604.06174).

    Raises:
        ModelError: the architecture does not support it.
    """
    if not model.supports_gradient_checkpointing:
        raise unsupported_option(model, "training.gradient_checkpointing")
    # the reentrant form needs inputs with gradients, and breaks hooks
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def layers(model: PreTrainedModel, field: str) -> list[torch.nn.Module]:
    """A transformer's layers: the modules that transformers itself can run again.

    Raises:
        ModelError: it has none that can be told.
    """
    modules: list[torch.nn.Module] = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not modules:
        raise unsupported_option(model, field)
    return modules


def unsupported_option(model: PreTrainedModel, field: str) -> ModelError:
    """The error for an architecture without layers as transformers knows them."""
    return ModelError(f"{field} does not work with {type(model).__name__}", f"leave {field} off")


# glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Has glibc reuse large blocks in place of returning them to the kernel and taking zeroed ones back.

    A training step frees and allocates the same sizes again and again, each above glibc's threshold for a mapping of
    its own. The process's peak stays the same. Where there is another C library, nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _NEVER)
