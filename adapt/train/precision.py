"""Which arithmetic a machine can do."""

from typing import Literal

import torch

from adapt.errors import ConfigError

Precision = Literal["fp32", "bf16"]


def resolve(wanted: str, device: torch.device) -> Precision:
    """The precision to run with: `auto` is bf16 where the hardware multiplies in it, else fp32.

    Raises:
        ConfigError: the machine cannot do what is asked.
    """
    has_bf16 = (
        torch.cuda.is_bf16_supported()
        if device.type == "cuda"
        else torch.cpu.get_capabilities().get("avx512_bf16", False)
    )
    if wanted == "auto":
        return "bf16" if has_bf16 else "fp32"
    if wanted == "bf16" and not has_bf16:
        raise ConfigError("training.precision bf16: this device has no bf16 arithmetic", "use fp32, or auto")
    return wanted  # type: ignore[return-value]
