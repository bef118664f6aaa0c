"""Gives access to undocumented names of DeepSpeed. No other module of dontstop uses such names.

Another version of DeepSpeed may lack one of these names. Assigning to a missing attribute would raise no error, but
losses would be scaled twice, or gradients of an earlier step would be added. Therefore, every name is looked up before
it is used, and `EngineParts` looks up all names that a run needs before the first step. `adapt.support.versions` has
the tested version.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, cast

import deepspeed
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from adapt.support.errors import TrainingError
from adapt.support.versions import TRIED, named


def missing(what: str) -> TrainingError:
    """Creates the error for a name that the installed DeepSpeed lacks."""
    return TrainingError(
        f"{named('deepspeed')} has no {what}, which dontstop needs (tested: DeepSpeed {TRIED['deepspeed']})",
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
"""Classes in DeepSpeed's checkpoint files other than tensors and plain values. Loading these classes runs no code."""
_NEEDED: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("torch_autocast_gradscaler", "loss_scale", "single_partition_of_fp32_groups"),
    2: ("torch_autocast_gradscaler", "loss_scale", "single_partition_of_fp32_groups"),
    3: ("torch_autocast_gradscaler", "loss_scale", "fp32_partitioned_groups_flat", "grad_partitions_flat_buffer"),
}
"""Attributes of DeepSpeed's optimizer that a training run uses, keyed by ZeRO stage."""


def attribute(holder: Any, name: str) -> Any:
    """Returns an attribute of one of DeepSpeed's objects.

    Raises:
        TrainingError: the object has no attribute of this name.
    """
    if not hasattr(holder, name):
        raise missing(f"{type(holder).__name__}.{name}")
    return getattr(holder, name)


def assign(holder: Any, name: str, value: Any) -> None:
    """Sets an existing attribute of one of DeepSpeed's objects.

    Raises:
        TrainingError: the object has no attribute of this name.
    """
    attribute(holder, name)
    setattr(holder, name, value)


def compile_no_collective() -> None:
    """Turns off DeepSpeed's shared-memory collective, which takes 30 s to compile. Gloo and NCCL replace it.

    DeepSpeed only has this collective on CPUs.

    Raises:
        TrainingError: this version of DeepSpeed has no switch for the collective.
    """
    switches = getattr(deepspeed.ops, "__compatible_ops__", {})
    if "deepspeed_shm_comm" not in switches and get_accelerator().device_name() == "cpu":
        raise missing('deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"]')
    switches["deepspeed_shm_comm"] = False


class EngineParts:
    """Access to the undocumented attributes of a DeepSpeed engine that a training run reads or sets.

    Args:
        engine: engine that has not trained yet.
        zero_stage: ZeRO stage, 0 to 3.
        offloads: whether the optimizer's state is in the machine's memory instead of the device's memory.
        trained: parameters that the optimizer updates.

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
            if held := attribute(parameter, "_hp_mapping"):  # None if other ranks hold the whole parameter
                attribute(parameter, "_index_in_param_group")
                for name in ("lp_fragment_address", "hp_fragment", "get_lp_grad_fragment"):
                    attribute(held, name)

    def set_loss_scale(self, scale: float) -> None:
        """Replaces DeepSpeed's dynamic loss scale, which is torch's GradScaler, with a fixed loss scale.

        GradScaler is replaced because, at stages 1 to 3, DeepSpeed would clip gradients before they are divided by the
        scale, and change the scale within a step. At stage 0, the caller of `backward` must multiply the loss.
        """
        if self._stage == 0:
            assign(self._engine, "torch_autocast_z0_gradscaler", None)
        else:
            assign(self._zero, "torch_autocast_gradscaler", None)
            assign(self._zero, "loss_scale", scale)

    def weights(self, parameter: Any) -> tuple[int, Tensor] | None:
        """Returns the offset and the values of the part of a parameter that this rank updates, at stages 1 and 2.

        Returns None if other ranks update the whole parameter.
        """
        held = attribute(parameter, "_hp_mapping")
        return None if held is None else (held.lp_fragment_address.start, held.hp_fragment.detach())

    def gradient(self, parameter: Any) -> Tensor:
        """Returns the gradient of the part of a parameter that `weights` returns, at stages 1 and 2.

        Changes of the gradient in place affect the optimizer's step.
        """
        held = attribute(parameter, "_hp_mapping")
        return cast(Tensor, held.get_lp_grad_fragment(attribute(parameter, "_index_in_param_group")))

    def note_norm(self, parameter: Any, gradient: Tensor) -> None:
        """Updates the stored norm of a changed gradient at stages 1 and 2.

        Only an offloaded optimizer stores norms. DeepSpeed computes the norms in the backward pass, before the change.
        """
        if self._has_norms:
            identity = attribute(self._zero, "get_param_id")(parameter)
            attribute(self._zero, "norm_for_param_grads")[identity] = gradient.norm()

    def drop_gradients(self) -> None:
        """Clears gradients that DeepSpeed would keep after a step at stages 1 to 3.

        A method set these gradients, for parameters that got no gradient in the backward pass.
        """
        held = "fp32_partitioned_groups_flat" if self._stage == 3 else "single_partition_of_fp32_groups"
        gradients = [group.grad for group in attribute(self._zero, held) if group.grad is not None]
        if self._stage == 3:
            gradients.append(attribute(self._zero, "grad_partitions_flat_buffer"))
        for gradient in gradients:
            gradient.zero_()

    @contextmanager
    def loading_by_parameter(self) -> Iterator[None]:
        """Makes `load_checkpoint` read a checkpoint with one folder per parameter inside the block."""
        settings = attribute(self._engine, "_config")
        assign(settings, "load_universal_checkpoint", True)
        try:
            yield
        finally:
            assign(settings, "load_universal_checkpoint", False)


def join_shards(source: Path, target: Path) -> None:
    """Converts a checkpoint of stages 1 to 3 to one folder per parameter ("universal"), without DeepSpeed's output.

    Args:
        source: folder with DeepSpeed's files.
        target: folder for the converted files.
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
