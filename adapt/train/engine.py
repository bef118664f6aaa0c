"""Runs optimizer steps with DeepSpeed at any ZeRO stage. Needs torch.distributed, but not Ray."""

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_grad, safe_set_local_grad

from adapt.config import TrainingConfig
from adapt.support.errors import TrainingError
from adapt.train import deepspeed_parts, optimizer
from adapt.train.capacity.memory import BUCKET
from adapt.train.checkpoints.reshape import TAG, only_numbers, read_parameter, taken_apart
from adapt.train.checkpoints.stored_checkpoints import STATE_FILE
from adapt.train.model_options import LossScale, Precision

deepspeed_parts.compile_no_collective()
# hides warnings that DeepSpeed triggers several times per step
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)

_REDUCED_ELEMENTS = 4_000_000
"""Number of gradient elements that stage 0 sums over ranks in one call."""
Offload = Literal["none", "optimizer", "all"]


@dataclass(frozen=True)
class ParameterPart:
    """The part of a parameter that a rank holds."""

    name: str
    begin: int
    """Index of the first element of this part in the flattened parameter."""
    value: torch.Tensor
    """Weights of the part as a flat fp32 tensor, which the optimizer updates."""

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns the same part of another tensor that has the parameter's shape."""
        return whole.flatten()[self.begin : self.begin + len(self.value)]


class Engine:
    """A model and its optimizer, sharded by ZeRO over the ranks of the default process group.

    Args:
        model: model with fp32 weights, on any device.
        training: training settings, including those of the optimizer.
        zero_stage: ZeRO stage, 0 to 3.
        precision: precision of forward and backward passes. Weights and optimizer stay fp32.
        micro_batch: number of sequences per pass.
        accumulation: number of passes per step.
        offload: parts of the state that are in the machine's memory instead of the device's memory (see
            `adapt.config.ResourcesConfig`).
        splits_head: whether steps may train only the language-model head.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        training: TrainingConfig,
        zero_stage: int,
        precision: Precision,
        micro_batch: int,
        accumulation: int,
        offload: Offload = "none",
        splits_head: bool = False,
    ) -> None:
        self.max_norm = training.max_gradient_norm
        self._has_changed = False
        self.zero_stage = zero_stage
        self._adamw = optimizer.build_optimizer(model, training, zero_stage > 0, splits_head)
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._trained = {names[p]: p for group in self._adamw.param_groups for p in group["params"]}
        # counted before ZeRO divides the parameters
        self._sizes = {name: parameter.numel() for name, parameter in self._trained.items()}
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=self._adamw,
            config=zero_config(self.max_norm, zero_stage, precision, micro_batch, accumulation, offload),
        )
        self._inside = deepspeed_parts.EngineParts(self._engine, zero_stage, offload != "none", self._trained.values())
        self._set_scale(LossScale() if precision == "fp16" else None)

    def _set_scale(self, scale: LossScale | None) -> None:
        """Replaces DeepSpeed's loss scale. None turns scaling off."""
        self.scale = scale
        self._inside.set_loss_scale(scale.value if scale else 1.0)

    @property
    def model(self) -> torch.nn.Module:
        """Module to call in forward passes."""
        module: torch.nn.Module = self._engine
        return module

    @property
    def device(self) -> torch.device:
        """Device that batches must be on."""
        return torch.device(self._engine.device)

    def begin_pass(self, is_last: bool) -> None:
        """Tells DeepSpeed whether the next pass is the last of its step. Steps may have different numbers of passes."""
        self._engine.set_gradient_accumulation_boundary(is_last)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of a micro-batch. Training minimizes the sum of the losses over all passes and ranks."""
        factor = float(dist.get_world_size())  # DeepSpeed averages over ranks
        if self.scale and self.zero_stage == 0:  # at other stages, DeepSpeed multiplies and divides by the scale itself
            factor *= self.scale.value
        with self._engine.no_sync() if self.zero_stage == 0 else nullcontext():  # `_reduce` then sums gradients
            self._engine.backward(loss * factor, scale_wrt_gas=False)
        if self.zero_stage == 0 and self._engine.is_gradient_accumulation_boundary():
            self._reduce()

    def _reduce(self) -> None:
        """Averages gradients over ranks at stage 0, in pieces.

        DeepSpeed's own reduction would copy all gradients into large buffers, even with one rank.
        """
        for parameter in self._trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # weight decay needs a gradient, as at other stages
        if dist.get_world_size() > 1:
            self._engine.allreduce_gradients(bucket_size=_REDUCED_ELEMENTS)

    def step(self, learning_rate: float, head_alone: bool = False) -> float:
        """Ends a pass. After the last pass of a step, updates the weights.

        Args:
            learning_rate: learning rate of the step.
            head_alone: whether to train only the language-model head, which needs `splits_head`.

        Returns:
            Global gradient norm before clipping. It is 0 after passes that do not end a step. It is infinite if fp16
            overflowed, which skips the step and lowers the loss scale.

        Raises:
            TrainingError: the norm is not finite. With fp16, it is not finite even at the smallest loss scale. The
                weights are unchanged.
        """
        optimizer.set_learning_rate(self._engine.optimizer.param_groups, learning_rate, head_alone)
        at_boundary = self._engine.is_gradient_accumulation_boundary()
        norm = self._clip() if at_boundary and self.zero_stage == 0 else 0.0
        self._engine.step()
        if self._has_changed and self.zero_stage > 0:  # DeepSpeed would keep gradients that a method set
            self._inside.drop_gradients()
        self._has_changed = False
        if at_boundary and self.zero_stage > 0:
            norm = float(self._engine.get_global_grad_norm())  # the norm is infinite if DeepSpeed skipped the step
            self._judge(norm)
        return norm

    def skip(self) -> None:
        """Ends a step without changing weights, optimizer or loss scale. Replaces `step` after the last pass of a step.

        At stage 0, the optimizer ignores parameters without gradients. At other stages, DeepSpeed itself skips a step
        with infinite gradients.
        """
        if self.zero_stage == 0:
            self._engine.zero_grad()
            self._engine.step()
            return
        self.change_gradients(lambda part, gradient: torch.full_like(gradient, math.inf))
        self._engine.step()
        self._inside.drop_gradients()
        self._has_changed = False

    def gradient_norm(self) -> float:
        """Returns the global gradient norm before clipping, after the last pass of a step and before `step`.

        All ranks must call it, and all get the same number.
        """
        square = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in self.parts() if self.zero_stage > 0 or dist.get_rank() == 0 else ():
            own = self._gradient(self._trained[part.name]).view(-1)[: len(part.value)]
            square += torch.linalg.vector_norm(own.float()).to(self.device, torch.float64).square()
        dist.all_reduce(square)  # at stage 0, each rank has the whole sum, so only rank 0 adds its sum
        return math.sqrt(square.item()) / (self.scale.value if self.scale else 1.0)

    def _clip(self) -> float:
        """Unscales, checks and clips gradients before the step at stage 0, where DeepSpeed does none of this.

        Returns the norm before clipping. Returns infinity if the norm is infinite or NaN.
        """
        if self.scale:
            for parameter in self._trained.values():
                cast(torch.Tensor, parameter.grad).div_(self.scale.value)
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained.values(), self.max_norm or math.inf))
        self._judge(norm)
        if not math.isfinite(norm):
            self._engine.zero_grad()  # the optimizer skips parameters without gradients
            return math.inf  # as DeepSpeed returns at other stages, even for NaN
        return norm

    def _judge(self, norm: float) -> None:
        """Adjusts the loss scale to the norm of a step. Raises TrainingError if the run cannot continue."""
        finite = math.isfinite(norm)
        if self.scale:
            self.scale.update(overflowed=not finite)
            self._set_scale(self.scale)
        elif not finite:
            fix = "lower training.learning_rate or use training.precision fp32; the last checkpoint is intact"
            raise TrainingError(f"the gradient norm is {norm}", fix)

    def parts(self) -> Iterator[ParameterPart]:
        """Yields the part of each trained parameter that this rank holds. At stage 0, this is the whole parameter."""
        for name, parameter in self._trained.items():
            if self.zero_stage == 0:
                yield ParameterPart(name, 0, parameter.detach().view(-1))
            elif self.zero_stage < 3:
                if held := self._inside.weights(parameter):
                    yield ParameterPart(name, *held)
            else:  # the part of the last rank is padded to the size of the other parts
                held = safe_get_local_fp32_param(parameter)
                begin = dist.get_rank() * len(held)
                if (count := min(len(held), self._sizes[name] - begin)) > 0:
                    yield ParameterPart(name, begin, held[:count].detach())

    def change_gradients(self, change: Callable[[ParameterPart, torch.Tensor], torch.Tensor]) -> None:
        """Replaces the gradients of a step before they are clipped.

        Args:
            change: function that returns the new gradient. Its arguments are this rank's part of a parameter, and the
                gradient of the part as a flat fp32 tensor.
        """
        scale = self.scale.value if self.scale else 1.0
        self._has_changed = True
        for part in self.parts():
            parameter = self._trained[part.name]
            held = self._gradient(parameter)
            own = held.view(-1)[: len(part.value)]
            old = own.to(part.value.device)
            new = change(part, old if scale == 1 else old / scale)
            own.copy_(new if scale == 1 else new * scale)
            if self.zero_stage == 3:
                safe_set_local_grad(parameter, held)
            elif self.zero_stage > 0:
                self._inside.note_norm(parameter, held)

    def _gradient(self, parameter: Any) -> torch.Tensor:
        """Returns this rank's part of a parameter's gradient. At stages 0 to 2, changes in place affect the step."""
        if self.zero_stage == 0:
            return cast(torch.Tensor, parameter.grad)
        if self.zero_stage < 3:
            return self._inside.gradient(parameter)
        return cast(torch.Tensor, safe_get_local_grad(parameter))

    def report(self) -> dict[str, float]:
        """Returns the loss scale and the number of skipped steps with fp16.

        Returns an empty mapping with other precisions.
        """
        return {"loss_scale": self.scale.value, "skipped_steps": self.scale.skipped_steps} if self.scale else {}

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        """Writes this rank's share of the resumable state, and `progress`, to a folder. All ranks must call it."""
        self._engine.save_checkpoint(str(folder), tag=TAG)
        if dist.get_rank() == 0:
            scale = {"scale": asdict(self.scale)} if self.scale else {}
            (folder / STATE_FILE).write_text(json.dumps({**self._shape, **scale, "progress": progress}))

    def load(self, folder: Path) -> dict[str, Any]:
        """Restores the state that `save` wrote, and returns its `progress`. All ranks must call it.

        The state may have been written with another number of ranks or at another ZeRO stage. In this case, frozen
        parameters and buffers are not read, and keep the values of the loaded model.

        Raises:
            TrainingError: the state was written with other resources and cannot be converted, or DeepSpeed does not
                load it. The model is unchanged.
        """
        written = json.loads((folder / STATE_FILE).read_text())
        shape = {key: written[key] for key in self._shape}
        if shape == self._shape or shape["zero_stage"] == self.zero_stage == 0:
            self._read(folder)
        else:
            self._load_other(folder, shape)
        if self.scale:
            self._set_scale(LossScale(**written.get("scale", {})))
        return dict(written["progress"])

    def _read(self, folder: Path) -> None:
        with only_numbers():
            loaded, _ = self._engine.load_checkpoint(str(folder), tag=TAG)
        if loaded is None:  # DeepSpeed raises no error, and would continue with the current weights
            raise TrainingError(f"DeepSpeed cannot load a checkpoint from {folder}", "delete that folder and run again")

    @property
    def _shape(self) -> dict[str, int]:
        return {"workers": dist.get_world_size(), "zero_stage": self.zero_stage}

    def _load_other(self, folder: Path, written: dict[str, int]) -> None:
        try:
            with taken_apart(folder, written["zero_stage"], list(self._trained)) as parts:
                self._load_parts(parts)
        except TrainingError as error:
            raise TrainingError(
                f"the checkpoint was written by {written['workers']} workers at ZeRO stage {written['zero_stage']}, but"
                f" this run has {dist.get_world_size()} at stage {self.zero_stage}; {error.what}",
                "resume with the number of workers and the ZeRO stage of the run that wrote the checkpoint",
            ) from error

    def _load_parts(self, parts: Path) -> None:
        if self.zero_stage == 0:
            for name, parameter in self._trained.items():
                state = read_parameter(parts, name, parameter)
                parameter.data.copy_(state.pop("fp32"))
                self._adamw.state[parameter] = state
            return
        with self._inside.loading_by_parameter():
            self._read(parts)
        # gives each parameter its own step counter: at stage 3, each parameter would increment a shared counter
        for state in self._adamw.state.values():
            state["step"] = state["step"].to(state["exp_avg"].device, copy=True)

    def full_state(self) -> dict[str, torch.Tensor]:
        """Returns the complete weights of the model on the CPU. All ranks must call it.

        On ranks other than 0, the result is empty.
        """
        module, first = self._engine.module, dist.get_rank() == 0
        parameters = list(module.parameters())
        with deepspeed.zero.GatheredParameters(parameters, enabled=self.zero_stage == 3):
            return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()} if first else {}


def zero_config(
    max_norm: float, zero_stage: int, precision: Precision, micro_batch: int, accumulation: int, offload: Offload
) -> dict[str, Any]:
    """Returns DeepSpeed's configuration. See `Engine` for the arguments."""
    left = {"none": (), "optimizer": ("offload_optimizer",), "all": ("offload_optimizer", "offload_param")}[offload]
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_norm if zero_stage > 0 else 0.0,  # at stage 0, Engine._clip clips gradients
        "zero_optimization": {
            "stage": zero_stage,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            **{part: {"device": "cpu"} for part in left},
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's own AdamW for CPUs would be compiled on first use
        "torch_autocast": {
            "enabled": precision != "fp32",
            "dtype": "float16" if precision == "fp16" else "bfloat16",
            "lower_precision_safe_modules": [],  # gradients are summed, and parameters gathered, in fp32
        },
        "steps_per_print": None,
    }
