"""Looks at the device that training workers will have, without torch in the process that asks.

    python -m adapt.train.capacity.probe PRECISION WORKERS

prints what this machine has, and how fast that multiplies matrices, as a line of JSON.
"""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from functools import lru_cache

from adapt.config import ResourcesConfig, most_of
from adapt.errors import ClusterError
from adapt.ray.runtime import address_of, gpus_per_worker, hide_unreserved_gpus
from adapt.train.capacity.device import Device, found, has_gpu, limited, matmul_rate, this_machine
from adapt.train.threads import use_threads

PROBE_S = 120


def known_device(resources: ResourcesConfig) -> Device | None:
    """The device as far as it is known without Ray: the one configured, or this machine's. None for a cluster's."""
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
    """This machine's device and how fast it multiplies matrices [FLOP/s], found out in a process of its own.

    Raises:
        ClusterError: that process failed.
    """
    return _measured(precision, _processes(resources))


def _processes(resources: ResourcesConfig) -> int:
    """Training processes that have a part of this machine each."""
    return most_of(resources.workers) * resources.trainings


@lru_cache  # a chain asks for every training
def _measured(precision: str, workers: int) -> tuple[Device, float]:
    command = [sys.executable, "-m", "adapt.train.capacity.probe", precision, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ClusterError(f"cannot look at this machine's device: {lines[-1]}", "check that torch can be imported")
    values = json.loads(done.stdout.splitlines()[-1])
    return Device(**values["device"]), values["rate"]


def device_of_workers(resources: ResourcesConfig) -> Device | None:
    """The device of a worker on the cluster that this process is connected to; None while no worker can be placed.

    A task with a worker's resources looks at the node it lands on.
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
    its_own = next(known["Resources"] for known in ray.nodes() if known["NodeID"] == node)  # it may have come meanwhile
    workers_per_node = int(its_own.get("CPU", 1) / resources.cpus_per_worker)
    return replace(device, shared_by=max(1, min(_processes(resources), workers_per_node)))


def _look() -> tuple[Device, str]:
    import ray

    hide_unreserved_gpus()
    return found(), ray.get_runtime_context().get_node_id()


def main() -> None:
    """Prints the answer."""
    import torch

    precision, workers = sys.argv[1], int(sys.argv[2])
    device = found(workers)
    if not device.on_gpu:
        use_threads(torch.get_num_threads(), workers)
    print(json.dumps({"device": asdict(device), "rate": matmul_rate(device.kind, device.precision(precision))}))


if __name__ == "__main__":
    main()
