"""Tests the description and measurement of devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adapt.config import ResourcesConfig
from adapt.train.capacity import device
from adapt.train.capacity.device import (
    Device,
    found,
    limited,
    machine_memory,
    matmul_rate,
    task_needs,
    this_machine,
    training_needs,
)
from adapt.train.capacity.memory import GIB
from adapt.train.model_options import resolve

GPU = Device("cuda", 80 * GIB, has_bf16=True, name="a GPU")


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(device, "has_gpu", lambda: False)


def test_this_machine_is_described_as_torch_sees_it() -> None:
    assert this_machine().has_bf16 == (resolve("auto", torch.device("cpu")) == "bf16")
    if not torch.cuda.is_available():
        assert found(2) == this_machine(2)
        assert this_machine(2).memory_per_worker == this_machine().memory // 2


@pytest.mark.parametrize(
    ("file", "visible", "expected"),
    [("nvidia0", None, True), ("nvidia1", None, True), ("nvidiactl", None, False), ("nvidia1", "", False)],
)
def test_a_container_may_have_any_gpu_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, visible: str | None, expected: bool
) -> None:
    monkeypatch.undo()  # the fixture replaced the function
    (tmp_path / file).touch()
    monkeypatch.setattr(device, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device.has_gpu() == expected


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "memory.max"
    monkeypatch.setattr(device, "CGROUP_LIMITS", (str(file), str(tmp_path / "missing")))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, expected in (("max\n", physical), (f"{2**30}\n", 2**30), (f"{2**62}\n", physical)):
        file.write_text(text)
        assert machine_memory() == expected


def test_configured_memory_and_gpu_shares_limit_the_device() -> None:
    assert limited(GPU, None) == GPU
    assert limited(GPU, 24.0).memory_per_worker == 24 * GIB
    assert limited(GPU, None, 0.25).memory_per_worker == 20 * GIB
    assert limited(GPU, None, 2.0) == GPU
    assert limited(Device("cpu", 64 * GIB, shared_by=4), 8.0).memory_per_worker == 8 * GIB


def test_auto_precision_depends_on_the_device() -> None:
    assert GPU.precision("auto") == "bf16"
    assert Device("cpu", 1).precision("auto") == "fp32"
    assert GPU.precision("fp16") == "fp16"


def test_the_rate_is_that_of_a_matrix_product() -> None:
    """The measured rate is within a factor of five of the test's own measurement, because the machine may be busy."""
    import time

    left = torch.randn(1024, 1024)
    torch.mm(left, left)
    start = time.perf_counter()
    for _ in range(5):
        torch.mm(left, left)
    once = (time.perf_counter() - start) / 5
    assert 0.2 < matmul_rate("cpu", "fp32") / (2 * 1024**3 / once) < 5


@pytest.mark.parametrize(
    ("resources", "kind"),
    [
        (ResourcesConfig(device_memory_gib=24.0, gpus_per_worker=1.0), "cuda"),
        (ResourcesConfig(device_memory_gib=24.0, gpus_per_worker=0.0), "cpu"),
        (ResourcesConfig(device_memory_gib=24.0), "cpu"),
        (ResourcesConfig(device_memory_gib=24.0, address="10.0.0.1:6379"), "cuda"),
    ],
)
def test_a_configured_memory_needs_no_measurement(resources: ResourcesConfig, kind: str) -> None:
    known = device.known_device(resources)
    assert known
    assert (known.kind, known.memory_per_worker) == (kind, 24 * GIB)


def test_a_clusters_device_is_not_known_without_ray() -> None:
    assert device.known_device(ResourcesConfig(address="10.0.0.1:6379")) is None
    assert device.known_device(ResourcesConfig(workers=2)) == this_machine(2)
    assert device.known_device(ResourcesConfig(workers=2, trainings_per_machine=3)) == this_machine(6)


@pytest.mark.heavy
def test_the_device_is_measured_in_a_separate_process() -> None:
    command = [sys.executable, "-m", "adapt.train.capacity.device", "fp32", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["rate"] > 1e8
    assert Device(**answer["device"]) == found()


def test_the_device_of_workers_on_a_cluster(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers with one CPU each share the memory of the cluster's only node, which has 2 CPUs.

    Of 8 workers, only two fit on this node. A worker that needs 3 CPUs fits on no node.
    """
    # the device is not known, so a Ray task examines the node
    monkeypatch.setattr(device, "known_device", lambda _: None)
    of = device.device_of_workers
    alone, two, many = (of(ResourcesConfig(workers=workers, gpus_per_worker=0.0)) for workers in (1, 2, 8))
    assert alone
    assert (alone.memory, alone.shared_by) == (machine_memory(), 1)
    assert two
    assert two.shared_by == 2
    assert many
    assert many.shared_by == 2  # the other 6 workers will run on other nodes
    assert of(ResourcesConfig(cpus_per_worker=3.0, gpus_per_worker=0.0)) is None


def test_a_node_that_joins_during_the_measurement_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    first, second = ({"NodeID": name, "Alive": True, "Resources": {"CPU": 4.0}} for name in ("first", "second"))
    # the autoscaler adds a second node during the measurement, and the task runs on that node
    known = iter([[first], [first, second]])
    monkeypatch.setattr(ray, "nodes", lambda: next(known))
    monkeypatch.setattr(ray, "remote", lambda **_: lambda look: SimpleNamespace(remote=lambda: look))
    monkeypatch.setattr(ray, "get", lambda _: (Device("cpu", GIB), "second"))
    seen = device.device_of_workers(ResourcesConfig(workers=2, gpus_per_worker=0.0, address="10.0.0.1:6379"))
    assert seen
    assert seen.shared_by == 2


@pytest.mark.parametrize(
    ("resources", "has_gpu", "training", "task"),
    [
        ({}, False, {"CPU": 8}, {"CPU": 8}),  # training on CPUs reserves all cores
        ({"workers": 2}, False, {"CPU": 8}, {"CPU": 8}),
        ({"workers": 2, "trainings_per_machine": 2}, False, {"CPU": 4}, {"CPU": 4}),
        ({"workers": (2, 6), "trainings_per_machine": 4}, False, {"CPU": 6}, {"CPU": 2}),
        ({"workers": 3, "cpus_per_worker": 4.0}, False, {"CPU": 12}, {"CPU": 8}),
        ({"workers": 2, "cpus_per_worker": 4.0}, True, {"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 1}),
        ({"workers": 2, "gpus_per_worker": 0.5}, True, {"CPU": 2, "GPU": 1}, {"CPU": 1, "GPU": 0.5}),
        # the GPUs belong to a cluster, because this machine has no GPU
        ({"workers": 2, "gpus_per_worker": 2.0}, False, {"CPU": 2, "GPU": 4}, {"CPU": 1, "GPU": 1}),
        ({"gpus_per_worker": 0.0}, True, {"CPU": 8}, {"CPU": 8}),
    ],
)
def test_stages_reserve_gpus_or_cores(
    resources: dict[str, Any],
    has_gpu: bool,
    training: dict[str, float],
    task: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setattr(device, "has_gpu", lambda: has_gpu)
    assert training_needs(ResourcesConfig(**resources)) == training
    assert task_needs(ResourcesConfig(**resources)) == task
