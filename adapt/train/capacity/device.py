"""Describes the devices of training workers, and chooses the CPU cores and GPUs that stages reserve.

    python -m adapt.train.capacity.device PRECISION WORKERS

This command prints this machine's device and its matrix multiplication rate as a line of JSON. Other processes run the
command to get both values without loading torch.

Stages declare the cores and GPUs that they use, so that stages that run at the same time do not slow each other down.
A stage on GPUs reserves the GPUs, and a core for each process. A stage on CPUs reserves all cores, divided by the
number of training runs that share the machine (`resources.trainings_per_machine`). On an existing cluster, processes
get the resources that they request.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from adapt.config import ResourcesConfig, most_of
from adapt.ray.runtime import address_of, gpus_per_worker, hide_unreserved_gpus
from adapt.support.errors import ClusterError, ConfigError
from adapt.train.worker_process import use_threads

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_DEVICES = Path("/dev")
MEASURED_S = 0.3
"""Duration of the measurement of the matrix multiplication rate [s]."""


@dataclass(frozen=True)
class Device:
    """A GPU, or the CPUs of a machine."""

    kind: str
    """Type of the device: `cuda` or `cpu`."""
    memory: int
    """Total memory of the device [bytes]. Free memory is not used, so that a restarted run makes the same decisions."""
    shared_by: int = 1
    """Number of workers that share the device."""
    has_bf16: bool = False
    """Whether the device multiplies faster in bf16 than in fp32."""
    name: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.kind == "cuda"

    @property
    def memory_per_worker(self) -> int:
        """Memory for each worker that shares the device [bytes]."""
        return self.memory // self.shared_by

    def precision(self, wanted: str) -> str:
        """Returns the precision to use on this device. `auto` is resolved as in `adapt.train.model_options`."""
        return ("bf16" if self.has_bf16 else "fp32") if wanted == "auto" else wanted


def this_machine(shared_by: int = 1) -> Device:
    """Describes the CPUs of this machine, without loading torch."""
    threads = max(1, len(os.sched_getaffinity(0)) // shared_by)
    known = _read("/proc/cpuinfo")
    flags = known.split("flags", 1)[-1].split("\n", 1)[0].split()
    has_bf16 = quick_bf16(flags, "GenuineIntel" in known)
    return Device("cpu", machine_memory(), shared_by, has_bf16, f"CPU, {threads} threads")


def quick_bf16(features: Collection[str], is_intel: bool) -> bool:
    """Returns whether a CPU multiplies matrices faster in bf16 than in fp32.

    This is true for AMD's CPUs with AVX512-BF16, and for Intel's CPUs with AVX512-BF16 and AMX. On an Intel Xeon
    without AMX, bf16 took 1.7 times as long as fp32. Virtual machines may hide AMX.
    """
    return "avx512_bf16" in features and ("amx_bf16" in features or not is_intel)


def has_gpu() -> bool:
    """Returns whether this machine has the device file of an NVIDIA GPU and the environment does not hide the GPUs.

    A container may have only some of its machine's GPUs, such as `/dev/nvidia1`.
    """
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(_DEVICES.glob("nvidia[0-9]*"))


def check_precision_on_cpu(precision: str, has_bf16: bool) -> None:
    """Checks that CPUs support the configured precision.

    Args:
        precision: value of `training.precision`.
        has_bf16: whether the CPUs have bf16 arithmetic, or are not known.

    Raises:
        ConfigError: the CPUs do not support the precision.
    """
    otherwise = "if there is a GPU, set resources.gpus_per_worker to 1"
    if precision == "fp16":
        fix = f"use bf16, fp32, or auto; {otherwise}"
        raise ConfigError("training.precision fp16 is for GPUs, and this run has none", fix)
    if precision == "bf16" and not has_bf16:
        fix = f"use fp32, or auto; {otherwise}"
        raise ConfigError("training.precision bf16: the CPU has no bf16 arithmetic", fix)


def cpu_has_bf16() -> bool:
    """Returns whether the CPUs of this machine support bf16, without loading torch."""
    return "avx512_bf16" in _read("/proc/cpuinfo")


def machine_memory() -> int:
    """Returns the memory of this machine, or the memory limit of its container if the limit is lower [bytes]."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for file in CGROUP_LIMITS if (text := _read(file).strip()).isdigit()]
    return min([physical, *limits])


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def found(local_workers: int = 1) -> Device:
    """Returns torch's current GPU in this process, or the CPUs if there is no GPU.

    Args:
        local_workers: number of training processes on this machine, which share its CPUs.
    """
    import torch

    if not torch.cuda.is_available():
        return this_machine(local_workers)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Device("cuda", properties.total_memory, 1, bf16, properties.name)


def limited(device: Device, memory_gib: float | None, gpus_per_worker: float | None = None) -> Device:
    """Overrides a device's memory, or the number of workers that share the device, with configured values.

    If `memory_gib` is set, it overrides the memory. Otherwise, if `gpus_per_worker` is below 1, it determines the
    number of workers that share a GPU.
    """
    if memory_gib is not None:
        return replace(device, memory=int(memory_gib * 2**30), shared_by=1)
    if device.on_gpu and gpus_per_worker and gpus_per_worker < 1:
        return replace(device, shared_by=round(1 / gpus_per_worker))
    return device


def matmul_rate(kind: str, precision: str) -> float:
    """Measures the matrix multiplication rate of this process's device, with square matrices [FLOP/s].

    No training run can reach a higher rate.
    """
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

    multiply(2)  # warm-up: the first call is slow
    seconds = multiply(1)
    times = max(1, int(MEASURED_S / 3 / seconds))
    return 2.0 * width**3 * times / min(multiply(times) for _ in range(3))


def training_needs(resources: ResourcesConfig) -> dict[str, float]:
    """Returns the resources of a stage that uses all workers, such as {"CPU": 4, "GPU": 4}.

    If the number of workers is a range, these are the resources of the maximum number.
    """
    workers, gpus = most_of(resources.workers), _gpus(resources)
    return _needs(resources, workers * resources.cpus_per_worker, workers * gpus)


def task_needs(resources: ResourcesConfig) -> dict[str, float]:
    """Returns the resources of a stage that uses one device or a part of it."""
    return _needs(resources, 1, min(1.0, _gpus(resources)))


def _gpus(resources: ResourcesConfig) -> float:
    return float(has_gpu()) if resources.gpus_per_worker is None else resources.gpus_per_worker


def _needs(resources: ResourcesConfig, cpus: float, gpus: float) -> dict[str, float]:
    if gpus:
        return {"CPU": cpus, "GPU": gpus}
    return {"CPU": max(cpus, len(os.sched_getaffinity(0)) / resources.trainings)}


def check_compiler(on_gpu: bool) -> None:
    """Checks that the compiler that torch.compile calls is installed.

    On CPUs, torch.compile needs a C++ compiler. On GPUs, it needs a C compiler for the launchers of kernels.

    Raises:
        ConfigError: no compiler is found.
    """
    names = [os.environ.get("CC"), "gcc", "clang", "cc"] if on_gpu else [os.environ.get("CXX", "g++")]
    if not any(name and shutil.which(name) for name in names):
        raise ConfigError(
            "training.compile needs a compiler, and none was found: looked for " + ", ".join(filter(None, names)),
            "install g++ (or set CXX to a C++ compiler), or leave training.compile off",
        )


PROBE_S = 120
"""Time limit of the process that measures this machine's device [s]."""


def known_device(resources: ResourcesConfig) -> Device | None:
    """Returns the device of a worker if it is known without Ray, else None.

    The device is known if its memory is configured or if workers run on this machine, but not if they run on a
    cluster.
    """
    if resources.device_memory_gib is not None:
        kind = "cpu" if resources.gpus_per_worker == 0 else "cuda"
        if resources.gpus_per_worker is None and address_of(resources) is None and not has_gpu():
            kind = "cpu"
        return limited(Device(kind, 0, has_bf16=kind == "cuda"), resources.device_memory_gib)
    if address_of(resources) is not None:
        return None
    if has_gpu() and resources.gpus_per_worker != 0:
        return limited(measured(resources, "auto")[0], None, resources.gpus_per_worker)
    return this_machine(_processes(resources))


def measured(resources: ResourcesConfig, precision: str) -> tuple[Device, float]:
    """Measures this machine's device and its matrix multiplication rate [FLOP/s] in a separate process.

    Raises:
        ClusterError: the process failed.
    """
    return measured_device(precision, _processes(resources))


def _processes(resources: ResourcesConfig) -> int:
    """Returns the number of training processes that share this machine."""
    return most_of(resources.workers) * resources.trainings


@lru_cache  # cached, because a chain needs the result for every training run
def measured_device(precision: str, workers: int) -> tuple[Device, float]:
    """Returns the device of this machine, and its matrix multiplication rate [FLOP/s]. A new process measures it."""
    command = [sys.executable, "-m", "adapt.train.capacity.device", precision, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ClusterError(
            f"the device of this machine cannot be measured: {lines[-1]}", "check that torch can be imported"
        )
    values = json.loads(done.stdout.splitlines()[-1])
    return Device(**values["device"]), values["rate"]


def device_of_workers(resources: ResourcesConfig) -> Device | None:
    """Returns a worker's device on the connected cluster. Returns None if no node has the resources for a worker.

    If the device is not known without Ray, a Ray task with the resources of a worker examines the node on which it
    runs.
    """
    if device := known_device(resources):
        return device
    import ray

    gpus = gpus_per_worker(resources)
    wanted = {"CPU": resources.cpus_per_worker, "GPU": gpus}
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in alive):
        return None
    look_remotely = ray.remote(num_cpus=resources.cpus_per_worker, num_gpus=gpus)(_look)
    device, node = ray.get(look_remotely.remote())
    if device.on_gpu:
        return limited(device, None, gpus)
    # Nodes are listed after the task, because its node may have joined the cluster in the meantime.
    on_node = next(known["Resources"] for known in ray.nodes() if known["NodeID"] == node)
    workers_per_node = int(on_node.get("CPU", 1) / resources.cpus_per_worker)
    return replace(device, shared_by=max(1, min(_processes(resources), workers_per_node)))


def _look() -> tuple[Device, str]:
    import ray

    hide_unreserved_gpus()
    return found(), ray.get_runtime_context().get_node_id()


def main() -> None:
    """Prints this machine's device and its matrix multiplication rate as a line of JSON."""
    precision, workers = sys.argv[1], int(sys.argv[2])
    device = found(workers)
    if not device.on_gpu:
        use_threads(shared_by=workers)  # as in training
    print(json.dumps({"device": asdict(device), "rate": matmul_rate(device.kind, device.precision(precision))}))


if __name__ == "__main__":
    main()
