"""What a worker computes on: its kind, memory, and how fast it multiplies matrices."""

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
MEASURED_S = 0.3
"""How long matrices are multiplied to know the rate [s]."""


@dataclass(frozen=True)
class Device:
    """A GPU, or the CPUs of a machine."""

    kind: str
    """`cuda` or `cpu`."""
    memory: int
    """All of it, whether free or not [bytes]: so that a run that starts again decides alike."""
    shared_by: int = 1
    """Workers that have a part of it each."""
    has_bf16: bool = False
    """Whether it multiplies in bf16 sooner than in fp32."""
    name: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is one."""
        return self.kind == "cuda"

    @property
    def memory_per_worker(self) -> int:
        """A worker's part of it [bytes]."""
        return self.memory // self.shared_by

    def precision(self, wanted: str) -> str:
        """What `auto` means on it; see `adapt.train.precision`."""
        return ("bf16" if self.has_bf16 else "fp32") if wanted == "auto" else wanted


def this_machine(shared_by: int = 1) -> Device:
    """The CPUs of this machine, looked at without torch."""
    threads = max(1, len(os.sched_getaffinity(0)) // shared_by)
    known = _read("/proc/cpuinfo")
    flags = known.split("flags", 1)[-1].split("\n", 1)[0].split()
    has_bf16 = quick_bf16(flags, "GenuineIntel" in known)
    return Device("cpu", machine_memory(), shared_by, has_bf16, f"CPU, {threads} threads")


def quick_bf16(features: Collection[str], is_intel: bool) -> bool:
    """Whether a CPU multiplies matrices in bf16 sooner than in fp32.

    AMD's do, and Intel's with AMX. Without it (a virtual machine may lack it) an Intel Xeon took 1.7 times as long.

    Args:
        features: as Linux names them.
        is_intel: who made it.
    """
    return "avx512_bf16" in features and ("amx_bf16" in features or not is_intel)


def has_gpu() -> bool:
    """Whether this machine seems to have an NVIDIA GPU, by its device file."""
    return Path("/dev/nvidia0").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def lacks_gpu() -> bool:
    """Whether this machine surely has no GPU, of any maker, or hides it: no device file of a driver is there."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    drivers = [*Path("/dev").glob("nvidia*"), *(Path("/dev") / name for name in ("kfd", "dxg"))]
    return hidden or not any(file.exists() for file in drivers)


def cpu_has_bf16() -> bool:
    """Whether the CPUs of this machine compute in bf16, as `adapt.train.precision` asks torch."""
    return "avx512_bf16" in _read("/proc/cpuinfo")


def machine_memory() -> int:
    """Memory of this machine, or of the container it is in [bytes]."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for file in CGROUP_LIMITS if (text := _read(file).strip()).isdigit()]
    return min([physical, *limits])


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def found(local_workers: int = 1) -> Device:
    """What torch sees in this process: its current GPU, or else the CPUs.

    Args:
        local_workers: training processes on this machine.
    """
    import torch

    if not torch.cuda.is_available():
        return this_machine(local_workers)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Device("cuda", properties.total_memory, 1, bf16, properties.name)


def limited(device: Device, memory_gib: float | None, gpus_per_worker: float | None = None) -> Device:
    """The device with the memory that the configuration gives it, or the share of a GPU that it asks for."""
    if memory_gib is not None:
        return replace(device, memory=int(memory_gib * 2**30), shared_by=1)
    if device.on_gpu and gpus_per_worker and gpus_per_worker < 1:
        return replace(device, shared_by=round(1 / gpus_per_worker))
    return device


def matmul_rate(kind: str, precision: str) -> float:
    """How fast this process's device multiplies square matrices [FLOP/s]: what a training pass can at best do."""
    import torch

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    width = 8192 if kind == "cuda" else 1024
    left, right = (torch.randn(width, width, dtype=torch.float32, device=kind).to(dtype) for _ in range(2))

    def multiply(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(left, right)
        if kind == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    multiply(2)  # the first is slow
    seconds = multiply(1)
    times = max(1, int(MEASURED_S / 3 / seconds))
    return 2.0 * width**3 * times / min(multiply(times) for _ in range(3))
