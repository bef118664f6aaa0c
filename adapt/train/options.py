"""What is done to a model before it trains, beside its objective: dropout, gradient checkpointing, torch.compile."""

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from adapt.config import TrainingConfig
from adapt.errors import ModelError
from adapt.model.packing.dropout import use_quick_dropout
from adapt.train.allocator import keep_freed_memory
from adapt.train.compiler import check_compiler


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
