"""Tests the model FLOPs utilization (MFU) and the peak memory that a training run reports."""

import pytest
import torch
import torch.distributed as dist

from adapt.train import meter as module
from adapt.train.capacity.flops import Workload, training_flops
from adapt.train.meter import Utilization, peak_memory
from tests.train.capacity.test_memory import ROBERTA

WORK = Workload(100.0, 0.15)


def measured() -> Utilization:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "matmul_rate", lambda *_: 1e12 * (1 + dist.get_rank()))
        return Utilization.measure(ROBERTA, WORK, True, torch.device("cpu"), "fp32")


def test_the_peak_rate_is_the_sum_of_all_devices(ranks) -> None:
    """The peak rate of ranks with 1 and 2 TFLOP/s is 3 TFLOP/s.

    Recomputation counts as FLOPs, but not for the utilization.
    """
    first, second = ranks(2).run(measured)
    assert first == second
    assert first.peak == 3e12
    assert first.needed == training_flops(ROBERTA, WORK)
    assert first.done == training_flops(ROBERTA, WORK, recompute=True)
    assert first.done_with(0.0) == first.done
    assert first.done_with(0.3) == pytest.approx(training_flops(ROBERTA, WORK, recompute=True, padding=0.3))
    speed = 0.3 * 3e12 / first.needed
    assert first.mfu(speed) == pytest.approx(0.3)
    assert first.added({"tokens_per_s": speed, "loss": 1.0}) == {
        "tokens_per_s": speed,
        "loss": 1.0,
        "mfu": pytest.approx(0.3),
    }


def peak_after(megabytes: int) -> int:
    if dist.get_rank() == 1:
        torch.ones(megabytes * 2**20, dtype=torch.uint8)
    return peak_memory(torch.device("cpu"))


def test_the_peak_is_that_of_the_fullest_rank(ranks) -> None:
    before = ranks(2).run(peak_after, 1)[0]
    first, second = ranks(2).run(peak_after, 1 + before // 2**20)
    assert first == second
    assert first > before + 2**28
