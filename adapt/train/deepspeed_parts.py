"""The undocumented parts of DeepSpeed that dontstop uses. No other module uses such parts.

Another version of DeepSpeed may lack one of these names. Assigning to a name that is gone would pass silently: losses
would be scaled twice, or gradients of an earlier step added. So every name is looked up before it is used, and an
`EngineParts` looks up all that a run needs before the first step. `adapt.support.versions` has the tested version.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, cast

import deepspeed
from torch import Tensor

from adapt.support.errors import TrainingError
from adapt.support.versions import TRIED, named


def missing(what: str) -> TrainingError:
    """The error for a name that the installed DeepSpeed does not have."""
    return TrainingError(
        f"{named('deepspeed')} has no {what}, which dontstop needs (tried: DeepSpeed {TRIED['deepspeed']})",
        f"pip install deepspeed=={TRIED['deepspeed']}",
    )


try:
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
except ImportError as error:
    raise missing(f"{error.name} as it was ({error})") from error

VERSION = deepspeed.__version__
CLASSES_IN_FILES = [fragment_address, ZeroStageEnum, LossScaler, DynamicLossScaler]
"""Classes in the files of DeepSpeed's checkpoints, beside tensors and plain values. None of them does anything."""
_NEEDED: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("torch_autocast_gradscaler", "loss_scale", "single_partition_of_fp32_groups"),
    2: ("torch_autocast_gradscaler", "loss_scale", "single_partition_of_fp32_groups"),
    3: ("torch_autocast_gradscaler", "loss_scale", "fp32_partitioned_groups_flat", "grad_partitions_flat_buffer"),
}
"""Attributes of DeepSpeed's optimizer by ZeRO stage."""


def attribute(holder: Any, name: str) -> Any:
    """An attribute of an object of DeepSpeed.

    Raises:
        TrainingError: there is none of this name.
    """
    if not hasattr(holder, name):
        raise missing(f"{type(holder).__name__}.{name}")
    return getattr(holder, name)


def assign(holder: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object of DeepSpeed.

    Raises:
        TrainingError: there is none of this name.
    """
    attribute(holder, name)
    setattr(holder, name, value)


def compile_no_collective() -> None:
    """Turns off DeepSpeed's shared-memory collective, which takes 30 s to compile; gloo and NCCL do the same.

    Raises:
        TrainingError: this DeepSpeed has no such switch.
    """
    switches = getattr(deepspeed.ops, "__compatible_ops__", {})
    if "deepspeed_shm_comm" not in switches:
        raise missing('deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"]')
    switches["deepspeed_shm_comm"] = False


class EngineParts:
    """What a training reads and sets inside a DeepSpeed engine.

    Args:
        engine: new.
        zero_stage: 0 to 3.
        offloads: whether the optimizer is kept in the machine's memory.
        trained: the parameters of the optimizer.

    Raises:
        TrainingError: the installed DeepSpeed lacks a name that a run at this stage uses.
    """

    def __init__(self, engine: Any, zero_stage: int, offloads: bool, trained: Iterable[Any]) -> None:
        self._engine, self._zero, self._stage = engine, engine.optimizer, zero_stage
        self._has_norms = offloads and zero_stage in (1, 2)
        attribute(attribute(engine, "_config"), "load_universal_checkpoint")
        if zero_stage == 0:
            attribute(engine, "torch_autocast_z0_gradscaler")
        norms = ("norm_for_param_grads", "get_param_id") if self._has_norms else ()
        for name in (*_NEEDED[zero_stage], *norms):
            attribute(self._zero, name)
        for parameter in trained if zero_stage in (1, 2) else ():
            if held := attribute(parameter, "_hp_mapping"):  # none where other ranks have all of it
                attribute(parameter, "_index_in_param_group")
                for name in ("lp_fragment_address", "hp_fragment", "get_lp_grad_fragment"):
                    attribute(held, name)

    def set_loss_scale(self, scale: float) -> None:
        """Puts a fixed loss scale in place of DeepSpeed's, which is torch's GradScaler.

        At stage 0 DeepSpeed then scales nothing, and whoever calls `backward` multiplies by it. At stages 1 to 3,
        GradScaler would clip gradients before it divides them, and change the scale within a step.
        """
        if self._stage == 0:
            assign(self._engine, "torch_autocast_z0_gradscaler", None)
        else:
            assign(self._zero, "torch_autocast_gradscaler", None)
            assign(self._zero, "loss_scale", scale)

    def weights(self, parameter: Any) -> tuple[int, Tensor] | None:
        """At stages 1 and 2: the part of a parameter that this rank's optimizer changes, and where it begins."""
        held = attribute(parameter, "_hp_mapping")
        return None if held is None else (held.lp_fragment_address.start, held.hp_fragment.detach())

    def gradient(self, parameter: Any) -> Tensor:
        """At stages 1 and 2: the gradient of that part; changing it changes the step."""
        held = attribute(parameter, "_hp_mapping")
        return cast(Tensor, held.get_lp_grad_fragment(attribute(parameter, "_index_in_param_group")))

    def note_norm(self, parameter: Any, gradient: Tensor) -> None:
        """At stages 1 and 2: takes note of a gradient that has changed.

        With the optimizer offloaded, DeepSpeed takes norms on the way, in the backward pass.
        """
        if self._has_norms:
            identity = attribute(self._zero, "get_param_id")(parameter)
            attribute(self._zero, "norm_for_param_grads")[identity] = gradient.norm()

    def drop_gradients(self) -> None:
        """At stages 1 to 3: sets gradients to 0 that DeepSpeed keeps after a step, of parameters that had none."""
        held = "fp32_partitioned_groups_flat" if self._stage == 3 else "single_partition_of_fp32_groups"
        gradients = [group.grad for group in attribute(self._zero, held) if group.grad is not None]
        if self._stage == 3:
            gradients.append(attribute(self._zero, "grad_partitions_flat_buffer"))
        for gradient in gradients:
            gradient.zero_()

    @contextmanager
    def loading_by_parameter(self) -> Iterator[None]:
        """In the block, `load_checkpoint` reads a checkpoint that was taken apart by parameter."""
        settings = attribute(self._engine, "_config")
        assign(settings, "load_universal_checkpoint", True)
        try:
            yield
        finally:
            assign(settings, "load_universal_checkpoint", False)


def join_shards(source: Path, target: Path) -> None:
    """Writes a checkpoint of stages 1 to 3 by parameter ("universal"), in silence.

    Args:
        source: the folder with DeepSpeed's files.
        target: the folder to write.
    """
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        attribute(ds_to_universal, "main")(
            Namespace(
                input_folder=str(source),
                output_folder=str(target),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )
