"""The DeepSpeed engine: one optimizer step at any ZeRO stage. Needs torch.distributed, not Ray."""

import math
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from adapt.config import TrainingConfig
from adapt.errors import TrainingError
from adapt.train.precision import Precision

# DeepSpeed would compile a shared-memory collective with the machine's C++ compiler at first use: half a minute, and
# a failure where there is no compiler. gloo and nccl do the same work.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Engine:
    """A model and its AdamW, sharded by ZeRO over the ranks of the default process group.

    Args:
        model: weights in fp32, on any device.
        training: optimizer settings.
        zero_stage: 0 to 3.
        precision: arithmetic of forward and backward; weights and optimizer stay fp32.
        micro_batch: sequences in one pass.
        accumulation: passes in a step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        training: TrainingConfig,
        zero_stage: int,
        precision: Precision,
        micro_batch: int,
        accumulation: int,
    ) -> None:
        self.max_norm = training.max_gradient_norm
        self.zero_stage = zero_stage
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=_adamw(model, training),
            config=_deepspeed_config(self.max_norm, zero_stage, precision, micro_batch, accumulation),
        )

    @property
    def model(self) -> torch.nn.Module:
        """The module to call in forward passes."""
        module: torch.nn.Module = self._engine
        return module

    @property
    def device(self) -> torch.device:
        """Where batches belong."""
        return torch.device(self._engine.device)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds a micro-batch's gradients. The sum over micro-batches and ranks of what is passed here is minimized."""
        self._engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)  # DeepSpeed averages over ranks

    def step(self, learning_rate: float) -> float:
        """One optimizer step at the end of each pass; a real one after the last micro-batch.

        Returns:
            Global gradient norm before clipping (0 between steps).

        Raises:
            TrainingError: the norm is not finite. The weights are those before the step.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        at_boundary = self._engine.is_gradient_accumulation_boundary()
        norm = self._clip() if at_boundary and self.zero_stage == 0 else 0.0
        self._engine.step()
        if at_boundary and self.zero_stage > 0:
            norm = float(self._engine.get_global_grad_norm() or 0.0)  # inf where DeepSpeed refused the step
            _refuse_unless_finite(norm)
        return norm

    def _clip(self) -> float:
        """At stage 0 DeepSpeed checks nothing, so the gradients are looked at before the step."""
        parameters = self._engine.module.parameters()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.max_norm or math.inf))
        _refuse_unless_finite(norm)
        return norm

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        """Writes this rank's share of the resumable state, and `progress`, into a folder. All ranks call it."""
        self._engine.save_checkpoint(str(folder), tag="state", client_state=progress)

    def load(self, folder: Path) -> dict[str, Any]:
        """Restores what `save` wrote, and returns its `progress`. All ranks call it."""
        _, progress = self._engine.load_checkpoint(str(folder), tag="state")
        return dict(progress)

    def full_state(self) -> dict[str, torch.Tensor]:
        """The model's weights, whole and on the CPU; empty on ranks other than 0. All ranks call it."""
        module, first = self._engine.module, dist.get_rank() == 0
        parameters = list(module.parameters())
        with deepspeed.zero.GatheredParameters(parameters, enabled=self.zero_stage == 3):
            return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()} if first else {}


def _refuse_unless_finite(norm: float) -> None:
    if not math.isfinite(norm):
        raise TrainingError(
            f"the gradient norm is {norm}", "lower training.learning_rate or use training.precision fp32"
        )


def _adamw(model: torch.nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=True,
    )


def _deepspeed_config(
    max_norm: float, zero_stage: int, precision: Precision, micro_batch: int, accumulation: int
) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_norm if zero_stage > 0 else 0.0,  # stage 0: see Engine._clip
        "zero_optimization": {"stage": zero_stage},
        "zero_allow_untested_optimizer": True,
        "torch_autocast": {
            "enabled": precision != "fp32",
            "dtype": "bfloat16",
        },
        "steps_per_print": None,
    }
