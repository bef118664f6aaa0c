"""Applies options to a model before it trains, and chooses the precision of a device or of all ranks.

The options are dropout, gradient checkpointing, torch.compile and frozen weights. On CPUs, the C library is also
configured to reuse freed memory. Otherwise, 7 to 20% of a training step are spent on fresh memory pages. For fp16, the
module scales the loss.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from adapt.config import TrainingConfig
from adapt.model.packing.attention import use_quick_dropout
from adapt.model.trainable import frozen_names
from adapt.support.errors import ConfigError, ModelError, TrainingError
from adapt.train.capacity.device import check_compiler, check_precision_on_cpu, quick_bf16
from adapt.train.worker_process import keep_freed_memory


def apply_options(model: PreTrainedModel, training: TrainingConfig, device: torch.device) -> None:
    """Turns on gradient checkpointing and compilation as configured, and speeds up CPUs. Changes the model in place.

    Args:
        model: model that no engine has wrapped yet.
        training: training settings.
        device: device that the model will train on.

    Raises:
        ConfigError: no compiler is found.
        ModelError: the model does not support a configured option.
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


_WRAPPED = ".base_layer."
"""Part that peft inserts into the names of a layer's parameters (method `lora`)."""


def freeze(model: PreTrainedModel, training: TrainingConfig, method: str) -> None:
    """Freezes the parameters that `training.freeze` names. Changes the model in place.

    Args:
        model: model that no engine has wrapped yet, with the parameters that the method adds.
        training: training settings.
        method: name of the method (`method.kind`), which may have frozen other parameters.

    Raises:
        ConfigError: an entry matches no parameter, or no parameter would be trained.
    """
    if not training.freeze:
        return
    named = {name.replace(_WRAPPED, "."): parameter for name, parameter in model.named_parameters()}
    for name in frozen_names(named, model.config.model_type, training.freeze):
        named[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ConfigError(
            f"training.freeze leaves no parameter to train with method.kind {method}, which freezes most of the model",
            "leave training.freeze out, or freeze fewer parameters",
        )


def checkpoint(model: PreTrainedModel) -> None:
    """Makes each layer store only its input, and run again in the backward pass (Chen et al., arXiv 1604.06174).

    Raises:
        ModelError: the architecture does not support gradient checkpointing.
    """
    if not model.supports_gradient_checkpointing:
        raise unsupported_option(model, "training.gradient_checkpointing")
    # not reentrant, because the reentrant variant needs inputs with gradients, and breaks hooks
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def layers(model: PreTrainedModel, field: str) -> list[torch.nn.Module]:
    """Returns a model's transformer layers: the modules that transformers can run again for gradient checkpointing.

    Raises:
        ModelError: the model has no such modules.
    """
    modules: list[torch.nn.Module] = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not modules:
        raise unsupported_option(model, field)
    return modules


def unsupported_option(model: PreTrainedModel, field: str) -> ModelError:
    """Creates the error for an architecture that does not mark its layers, so that they cannot be found."""
    return ModelError(f"{field} does not work with {type(model).__name__}", f"leave {field} off")


Precision = Literal["fp32", "bf16", "fp16"]

_MIN_SCALE, _MAX_SCALE = 1.0, 2.0**24
_GROWTH_STEPS = 2000


def resolve(wanted: str, device: torch.device) -> Precision:
    """Returns the precision to run with.

    `auto` is bf16 if the device multiplies faster in bf16 than in fp32, else fp32.

    Raises:
        ConfigError: the device does not support the configured precision.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        has_bf16 = is_quick = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = torch.cpu.get_capabilities()
        has_bf16 = known.get("avx512_bf16", False)
        is_quick = quick_bf16([name for name in known if known[name]], str(known.get("cpu_name")).startswith("Intel"))
    if wanted == "auto":
        return "bf16" if is_quick else "fp32"
    if not on_gpu:
        check_precision_on_cpu(wanted, has_bf16)
    elif wanted == "bf16" and not has_bf16:
        raise ConfigError("training.precision bf16: this GPU has no bf16 arithmetic", "use fp16, fp32, or auto")
    return wanted  # type: ignore[return-value]


def least_of_ranks(number: int, device: torch.device) -> int:
    """Returns the minimum of `number` over all ranks. All ranks must call this function."""
    agreed = torch.tensor(number, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return int(agreed)


def agreed_precision(wanted: str, device: torch.device) -> Precision:
    """Returns the common precision of all ranks. `auto` is bf16 only if it is bf16 on the device of every rank.

    All ranks must call this function.

    Raises:
        ConfigError: this rank's device does not support the configured precision.
    """
    own = resolve(wanted, device)
    if wanted != "auto":
        return own
    return "bf16" if least_of_ranks(own == "bf16", device) else "fp32"


@dataclass
class LossScale:
    """Dynamic loss scaling (Micikevicius et al., arXiv 1710.03740).

    In fp16, gradients below 6e-8 become 0. The loss is therefore multiplied by about the largest scale at which
    gradients do not overflow. The summed fp32 gradients are divided by the scale. A step that overflows is skipped and
    halves the scale. 2000 steps without overflow double the scale.
    """

    value: float = 2.0**16
    good_steps: int = 0
    """Number of steps without overflow since the last change of the scale."""
    skipped_steps: int = 0
    """Number of steps in the whole run that overflowed."""

    def update(self, overflowed: bool) -> None:
        """Adjusts the loss scale to the outcome of a step. It must be called after each step.

        Raises:
            TrainingError: even the smallest scale overflows, so the scale is not the cause.
        """
        if overflowed:
            if self.value <= _MIN_SCALE:
                raise TrainingError(
                    "gradients are not finite at any loss scale",
                    "lower training.learning_rate or use training.precision fp32",
                )
            self.value, self.good_steps, self.skipped_steps = self.value / 2, 0, self.skipped_steps + 1
            return
        self.good_steps += 1
        if self.good_steps == _GROWTH_STEPS:
            self.value, self.good_steps = min(self.value * 2, _MAX_SCALE), 0
