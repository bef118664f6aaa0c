"""What DeepSpeed is told."""

from typing import Any, Literal

from adapt.train.capacity.memory import BUCKET
from adapt.train.precision import Precision

Offload = Literal["none", "optimizer", "all"]


def zero_config(
    max_norm: float, zero_stage: int, precision: Precision, micro_batch: int, accumulation: int, offload: Offload
) -> dict[str, Any]:
    """DeepSpeed's configuration; see `adapt.train.engine.Engine`."""
    left = {"none": (), "optimizer": ("offload_optimizer",), "all": ("offload_optimizer", "offload_param")}[offload]
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_norm if zero_stage > 0 else 0.0,  # stage 0: see Engine._clip
        "zero_optimization": {
            "stage": zero_stage,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            **{part: {"device": "cpu"} for part in left},
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's own AdamW for CPUs is compiled on first use
        "torch_autocast": {
            "enabled": precision != "fp32",
            "dtype": "float16" if precision == "fp16" else "bfloat16",
            "lower_precision_safe_modules": [],  # gradients are summed, and parameters gathered, in fp32
        },
        "steps_per_print": None,
    }
