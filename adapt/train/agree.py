"""What all ranks of a training must do alike, although each looks at its own device."""

import torch
import torch.distributed as dist

from adapt.train.precision import Precision, resolve


def least_of_ranks(number: int, device: torch.device) -> int:
    """The least of all ranks' numbers. All ranks call it."""
    agreed = torch.tensor(number, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return int(agreed)


def agreed_precision(wanted: str, device: torch.device) -> Precision:
    """The precision of all ranks, which all call it: `auto` is bf16 where every rank's device multiplies in it.

    Raises:
        ConfigError: this rank's device cannot do what is asked.
    """
    own = resolve(wanted, device)
    if wanted != "auto":
        return own
    return "bf16" if least_of_ranks(own == "bf16", device) else "fp32"
