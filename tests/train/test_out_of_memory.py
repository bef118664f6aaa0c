"""Tests errors of devices that run out of memory: the errors name a fix and reach the driver unchanged."""

import pickle
from pathlib import Path

import pytest
import torch
from ray import cloudpickle
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from adapt.config import Config, ResourcesConfig, TrainingConfig
from adapt.ray.runtime import find_ours
from adapt.support.errors import DeviceMemoryError, TrainingError
from adapt.train.failure import PASS_FILE, as_ours, known, memory_errors, memory_kills, note_pass
from adapt.train.schedule import smaller_micro_batch

TRAINING = TrainingConfig(global_batch_size=24)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        MemoryError(),
    ],
)
def test_lack_of_memory_is_reported_with_a_fix(error: Exception) -> None:
    with pytest.raises(DeviceMemoryError, match="with 8 sequences per pass") as caught, memory_errors(TRAINING, 2, 8):
        raise error
    # 6 divides the 12 sequences that each of the two workers has per step
    assert caught.value.fix == "set training.micro_batch to 6"
    with pytest.raises(DeviceMemoryError) as caught, memory_errors(TRAINING, 2, 1):
        raise error
    assert caught.value.fix == "set training.gradient_checkpointing to true"


def test_other_errors_are_not_converted() -> None:
    with pytest.raises(RuntimeError, match="shapes"), memory_errors(TRAINING, 1, 8):
        raise RuntimeError("shapes do not match")


def test_the_number_of_sequences_survives_pickling() -> None:
    error = DeviceMemoryError("no room", "make some", 8, 3)
    arrived = cloudpickle.loads(cloudpickle.dumps(error))
    wrapped = RuntimeError("the worker failed")
    wrapped.__cause__ = arrived
    found = find_ours(wrapped)
    assert isinstance(found, DeviceMemoryError)
    assert (found.what, found.fix, found.micro_batch, found.steps) == ("no room", "make some", 8, 3)


def test_only_a_failure_after_some_steps_is_retried(tmp_path: Path) -> None:
    with pytest.raises(DeviceMemoryError) as first, memory_errors(TRAINING, 1, 8, lambda: 5):
        raise MemoryError
    steps = iter([5, 7])
    with pytest.raises(DeviceMemoryError) as later, memory_errors(TRAINING, 1, 8, lambda: next(steps)):
        raise MemoryError
    assert (first.value.steps, later.value.steps) == (0, 2)
    assert known(first.value, tmp_path) is not None
    assert known(later.value, tmp_path) is None
    # our error is raised when no retries remain
    assert isinstance(as_ours(later.value, tmp_path), DeviceMemoryError)


def test_the_next_smaller_pass_divides_a_workers_share() -> None:
    assert [smaller_micro_batch(TRAINING, 2, sequences) for sequences in (12, 6, 4, 2)] == [6, 4, 3, 1]


CONFIG = Config(training=TrainingConfig(global_batch_size=24), resources=ResourcesConfig(workers=2))
KILLED = OutOfMemoryError("Task was killed due to the node running low on memory.")


def died(of: Exception) -> Exception:
    """Returns Ray Train's error after rank 1 died and rank 0 lost the connection to it."""
    dead = WorkerHealthCheckFailedError("The health check of worker 1 failed", of)
    group = WorkerGroupError("two ranks failed", {0: RuntimeError("Connection closed by peer"), 1: dead})
    return pickle.loads(pickle.dumps(group))  # Ray Train's controller also pickles and unpickles the error


def trained(folder: Path, error: Exception, sequences: int | None) -> None:
    with memory_kills(CONFIG, folder):
        if sequences:
            note_pass(folder, sequences)
        raise as_ours(error, folder) from error


@pytest.mark.parametrize(("sequences", "fix"), [(8, "training.micro_batch to 6"), (1, "gradient_checkpointing")])
def test_a_killed_worker_is_reported_with_its_number_of_sequences(tmp_path: Path, sequences: int, fix: str) -> None:
    with pytest.raises(DeviceMemoryError, match=f"out of memory with {sequences} sequences per pass") as caught:
        trained(tmp_path, died(KILLED), sequences)
    assert caught.value.micro_batch == sequences
    assert fix in caught.value.fix
    assert not (tmp_path / PASS_FILE).exists()


def test_a_worker_killed_before_its_first_pass_gets_no_smaller_micro_batch(tmp_path: Path) -> None:
    note_pass(tmp_path, 8)  # imitates the file in which an earlier run noted the size of its passes
    with pytest.raises(TrainingError, match="low on memory") as caught:
        trained(tmp_path, died(KILLED), None)
    assert not isinstance(caught.value, DeviceMemoryError)


def test_a_worker_that_died_otherwise_did_not_run_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        trained(tmp_path, died(RayActorError()), 8)
    assert not isinstance(caught.value, DeviceMemoryError)
